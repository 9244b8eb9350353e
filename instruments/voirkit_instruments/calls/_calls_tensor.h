/* What a tensor is: read with C functions of torch's own, whose addresses record_values.py finds and tries; nothing of the program's runs.
 *
 * Where they are not to be had a tensor's attributes are asked for, unless a mode of the program (TorchFunctionMode) would see it. */

typedef struct {
    int64_t dims[8]; /* the first 8 */
    int32_t dtype, device, index;
    int ndim, grad;
} seen_tensor;

static struct {
    int32_t (*dim)(void *, int64_t *), (*sizes)(void *, int64_t **);
    int32_t (*dtype)(void *, int32_t *), (*device)(void *, int32_t *), (*index)(void *, int32_t *);
    _Bool (*grad)(const void *);
    Py_ssize_t at, keys_at; /* where in a Python tensor the C++ one is, and in that its keys */
    uint64_t strange;       /* keys of tensors that have no shape like others: nested ones */
} torch_c;

static PyObject *ask_modes, *word_shape, *word_dtype, *word_device, *word_type, *word_index, *word_grad, *codes; /* codes: dtype or device type -> number */

/* 1: read; 0: it cannot be read so. */
static int read_in_c(PyObject *tensor, seen_tensor *to) {
    void *handle = (char *)tensor + torch_c.at, *impl = *(void **)handle;
    int64_t ndim, *sizes;
    if (impl == NULL || *(uint64_t *)((char *)impl + torch_c.keys_at) & torch_c.strange)
        return 0;
    if (torch_c.dim(handle, &ndim) || torch_c.sizes(handle, &sizes) || torch_c.dtype(handle, &to->dtype) || torch_c.device(handle, &to->device) ||
        torch_c.index(handle, &to->index))
        return 0;
    to->ndim = ndim > 255 ? 255 : (int)ndim;
    memcpy(to->dims, sizes, sizeof(int64_t) * (size_t)(ndim > 8 ? 8 : ndim));
    to->grad = torch_c.grad(impl);
    return 1;
}

static int code_of(PyObject *thing, int32_t *code) { /* steals thing */
    PyObject *found = thing == NULL ? NULL : PyDict_GetItemWithError(codes, thing);
    Py_XDECREF(thing);
    *code = found == NULL ? -1 : (int32_t)PyLong_AsLong(found);
    return found != NULL;
}

static int read_attributes(PyObject *tensor, seen_tensor *to) {
    int done = 0;
    PyObject *shape = NULL, *device = NULL, *index = NULL, *grad = NULL;
    PyObject *modes = ask_modes == NULL ? NULL : PyObject_CallNoArgs(ask_modes);
    if (modes == NULL || PyObject_IsTrue(modes) != 0)
        goto out;
    shape = PyObject_GetAttr(tensor, word_shape);
    device = PyObject_GetAttr(tensor, word_device);
    grad = PyObject_GetAttr(tensor, word_grad);
    if (shape == NULL || device == NULL || grad == NULL || !PyTuple_Check(shape))
        goto out;
    if (!code_of(PyObject_GetAttr(tensor, word_dtype), &to->dtype) || !code_of(PyObject_GetAttr(device, word_type), &to->device))
        goto out;
    index = PyObject_GetAttr(device, word_index);
    to->index = index == NULL || index == Py_None ? -1 : (int32_t)PyLong_AsLong(index);
    to->ndim = (int)PyTuple_GET_SIZE(shape);
    for (int i = 0; i < to->ndim && i < 8; i++)
        to->dims[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
    to->grad = grad == Py_True;
    done = !PyErr_Occurred();
out:
    PyErr_Clear();
    Py_XDECREF(modes);
    Py_XDECREF(shape);
    Py_XDECREF(device);
    Py_XDECREF(index);
    Py_XDECREF(grad);
    return done;
}

static int read_tensor(PyObject *tensor, seen_tensor *to) {
    return torch_c.dim != NULL ? read_in_c(tensor, to) : codes != NULL && read_attributes(tensor, to);
}
