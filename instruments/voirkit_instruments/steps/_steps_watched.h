/* Part of _steps.c: a method written in C that is watched without a frame of Python, so that a warning that it gives names the program's line,
 * a traceback has no line of voirkit, and torch.compile has nothing more to look at.
 *
 *     hot.watch_copies(method, leave, name, way, tensor, modes)
 *
 * stands in a class in place of the method. From the class it is the method itself; from an object it is called as
 *
 *     result = method(object, *args, **kwargs)
 *     if result is not object: leave(began, object, result, device)
 *
 * where the thread is inside of nothing that is deaf to it; device is None, or has had begin() called and gets drop() where leave is not called.
 * The usual copy within the memory of the host, between tensors of torch's own type (tensor) that no mode of the program looks at (modes()),
 * is not told but recorded here, as leave would: name, way(device, device), bytes. Thousands of small copies in a row are common.
 */

typedef struct {
    PyObject_HEAD
    HotPath *hot;
    PyObject *method, *leave, *name, *way, *tensor, *modes;
    PyObject *cached_device, *cached_args; /* what way says of copies on this device */
} Watched;

typedef struct {
    PyObject_HEAD
    PyObject *watched, *object;
    vectorcallfunc call;
} Bound;

static PyTypeObject *bound_type, *watched_type;

static PyObject *call_method(Bound *bound, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Watched *watched = (Watched *)bound->watched;
    PyObject *result;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (nargsf & PY_VECTORCALL_ARGUMENTS_OFFSET) {
        PyObject **slot = (PyObject **)args - 1, *saved = *slot;
        *slot = bound->object;
        result = PyObject_Vectorcall(watched->method, slot, n + 1, names);
        *slot = saved;
        return result;
    }
    Py_ssize_t all = n + (names != NULL ? PyTuple_GET_SIZE(names) : 0);
    PyObject **slot = PyMem_Malloc((all + 1) * sizeof(PyObject *));
    if (slot == NULL)
        return PyErr_NoMemory();
    slot[0] = bound->object;
    for (Py_ssize_t i = 0; i < all; i++)
        slot[i + 1] = args[i];
    result = PyObject_Vectorcall(watched->method, slot, n + 1, names);
    PyMem_Free(slot);
    return result;
}

/* Whether two tensors lie in the same memory, or in none (of vmap's). */
static int share(PyObject *one, PyObject *other)
{
    PyObject *first = PyObject_CallMethodNoArgs(one, word_data_ptr);
    PyObject *second = first == NULL ? NULL : PyObject_CallMethodNoArgs(other, word_data_ptr);
    int same = second == NULL ? 1 : PyObject_RichCompareBool(first, second, Py_EQ);
    Py_XDECREF(first);
    Py_XDECREF(second);
    PyErr_Clear();
    return same != 0;
}

/* Record a usual copy. 1: done; 0: it is none, or could not be looked at, and leave is to; -1: a handler of the program's raised. */
static int record_copy(Watched *watched, int64_t began, PyObject *object, PyObject *result)
{
    HotPath *hot = watched->hot;
    if ((PyObject *)Py_TYPE(object) != watched->tensor || (PyObject *)Py_TYPE(result) != watched->tensor
        || truth(PyObject_CallNoArgs(watched->modes)) != 0) {
        PyErr_Clear();
        return 0;
    }
    PyObject *before = PyObject_GetAttr(object, word_device), *after = before == NULL ? NULL : PyObject_GetAttr(result, word_device);
    PyObject *start = NULL, *bytes = NULL;
    int done = after != NULL && PyObject_RichCompareBool(before, after, Py_EQ) == 1;
    if (!done || is_inside(hot) != IDLE || share(object, result))
        goto end;
    if (watched->cached_device == NULL || PyObject_RichCompareBool(watched->cached_device, after, Py_EQ) != 1) {
        PyObject *said = PyObject_CallFunctionObjArgs(watched->way, before, after, NULL);
        if (said == NULL) {
            done = PyErr_ExceptionMatches(PyExc_Exception) ? 0 : -1;
            goto end;
        }
        Py_XSETREF(watched->cached_device, Py_NewRef(after));
        Py_XSETREF(watched->cached_args, said);
    }
    done = (bytes = PyObject_GetAttr(result, word_nbytes)) != NULL && (start = PyLong_FromLongLong(began)) != NULL;
    if (done && record(hot, watched->name, start, clock_ns(), watched->cached_args, bytes) < 0)
        done = -1;
end:
    Py_XDECREF(before);
    Py_XDECREF(after);
    Py_XDECREF(start);
    Py_XDECREF(bytes);
    if (done >= 0)
        PyErr_Clear();
    return done;
}

/* What the program is to have stays as it is, a result or an exception. -1: a handler of the program's for a signal has raised meanwhile (Ctrl-C):
 * that exception is set, and takes the place of the result. */
static int tell_leave(Watched *watched, int64_t began, PyObject *object, PyObject *result, PyObject *device)
{
    int64_t end = clock_ns();
    PyObject *type, *value, *trace;
    int raised = 0;
    PyErr_Fetch(&type, &value, &trace);
    if (result != NULL && result != object) {
        int copied = device == Py_None ? record_copy(watched, began, object, result) : 0;
        PyObject *number = copied == 0 ? PyLong_FromLongLong(began) : NULL, *told = NULL;
        if (number != NULL)
            told = PyObject_CallFunctionObjArgs(watched->leave, number, object, result, device, NULL);
        raised = copied < 0 || (number != NULL && told == NULL && !PyErr_ExceptionMatches(PyExc_Exception)); /* as trouble() does */
        Py_XDECREF(number);
        Py_XDECREF(told);
    } else if (device != Py_None)
        Py_XDECREF(PyObject_CallMethodNoArgs(device, word_drop));
    watched->hot->own_ns += clock_ns() - end;
    if (raised)
        return -1;
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
    return 0;
}

static PyObject *call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Bound *bound = (Bound *)self;
    Watched *watched = (Watched *)bound->watched;
    HotPath *hot = watched->hot;
    if (is_inside(hot) > IN_BACKWARD)
        return call_method(bound, args, nargsf, names);
    int64_t asked = clock_ns();
    PyObject *device = Py_NewRef(hot->device);
    if (tell_device(hot, word_begin, NULL, NULL) < 0) {
        Py_DECREF(device);
        return NULL;
    }
    int64_t began = clock_ns();
    hot->own_ns += began - asked;
    PyObject *result = call_method(bound, args, nargsf, names);
    if ((device != Py_None || (result != NULL && result != bound->object)) && tell_leave(watched, began, bound->object, result, device) < 0)
        Py_CLEAR(result);
    Py_DECREF(device);
    return result;
}

/* the method of one object */

static int bound_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Bound *)self)->watched);
    Py_VISIT(((Bound *)self)->object);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void bound_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((Bound *)self)->watched);
    Py_CLEAR(((Bound *)self)->object);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *bound_plain(PyObject *self)
{
    PyObject *method = ((Watched *)((Bound *)self)->watched)->method;
    descrgetfunc get = Py_TYPE(method)->tp_descr_get;
    PyObject *object = ((Bound *)self)->object;
    return get != NULL ? get(method, object, (PyObject *)Py_TYPE(object)) : Py_NewRef(method);
}

static PyObject *bound_getattro(PyObject *self, PyObject *name)
{
    PyObject *plain = bound_plain(self);
    if (plain == NULL)
        return NULL;
    PyObject *found = PyObject_GetAttr(plain, name);
    Py_DECREF(plain);
    return found;
}

static PyObject *bound_repr(PyObject *self)
{
    PyObject *plain = bound_plain(self);
    if (plain == NULL)
        return NULL;
    PyObject *text = PyObject_Repr(plain);
    Py_DECREF(plain);
    return text;
}

static PyObject *bound_compare(PyObject *self, PyObject *other, int how)
{
    PyObject *one = bound_plain(self), *two = Py_TYPE(other) == bound_type ? bound_plain(other) : Py_NewRef(other);
    PyObject *result = one != NULL && two != NULL ? PyObject_RichCompare(one, two, how) : NULL;
    Py_XDECREF(one);
    Py_XDECREF(two);
    return result;
}

static Py_hash_t bound_hash(PyObject *self)
{
    PyObject *plain = bound_plain(self);
    Py_hash_t hash = plain != NULL ? PyObject_Hash(plain) : -1;
    Py_XDECREF(plain);
    return hash;
}

static PyMemberDef bound_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Bound, call), READONLY, NULL}, {NULL}};

static PyType_Slot bound_slots[] = {
    {Py_tp_traverse, bound_traverse}, {Py_tp_dealloc, bound_dealloc}, {Py_tp_getattro, bound_getattro}, {Py_tp_repr, bound_repr},
    {Py_tp_richcompare, bound_compare}, {Py_tp_hash, bound_hash},
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, bound_members}, {0, NULL}};

static PyType_Spec bound_spec = {"voirkit_instruments.steps._steps.Bound", sizeof(Bound), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, bound_slots};

/* what stands in the class */

static PyObject *watched_get(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    if (object == NULL || object == Py_None)
        return Py_NewRef(((Watched *)self)->method);
    Bound *bound = PyObject_GC_New(Bound, bound_type);
    if (bound == NULL)
        return NULL;
    bound->watched = Py_NewRef(self);
    bound->object = Py_NewRef(object);
    bound->call = call;
    PyObject_GC_Track(bound);
    return (PyObject *)bound;
}

static int watched_traverse(PyObject *self, visitproc visit, void *arg)
{
    Watched *watched = (Watched *)self;
    Py_VISIT(watched->hot);
    PyObject *held[] = {watched->method, watched->leave, watched->name, watched->way, watched->tensor, watched->modes, watched->cached_device,
                        watched->cached_args};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        Py_VISIT(held[i]);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int watched_clear(PyObject *self)
{
    Watched *watched = (Watched *)self;
    Py_CLEAR(watched->hot);
    PyObject **held[] = {&watched->method, &watched->leave, &watched->name, &watched->way, &watched->tensor, &watched->modes,
                         &watched->cached_device, &watched->cached_args};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        Py_CLEAR(*held[i]);
    return 0;
}

static void watched_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    watched_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot watched_slots[] = {
    {Py_tp_traverse, watched_traverse}, {Py_tp_clear, watched_clear}, {Py_tp_dealloc, watched_dealloc},
    {Py_tp_descr_get, watched_get}, {0, NULL}};

static PyType_Spec watched_spec = {"voirkit_instruments.steps._steps.Watched", sizeof(Watched), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                   watched_slots};

static PyObject *hot_watch_copies(HotPath *self, PyObject *args)
{
    PyObject *method, *leave, *name, *way, *tensor, *modes;
    if (!PyArg_ParseTuple(args, "OOOOOO", &method, &leave, &name, &way, &tensor, &modes))
        return NULL;
    Watched *made = (Watched *)watched_type->tp_alloc(watched_type, 0);
    if (made == NULL)
        return NULL;
    made->hot = (HotPath *)Py_NewRef((PyObject *)self);
    made->method = Py_NewRef(method);
    made->leave = Py_NewRef(leave);
    made->name = Py_NewRef(name);
    made->way = Py_NewRef(way);
    made->tensor = Py_NewRef(tensor);
    made->modes = Py_NewRef(modes);
    return (PyObject *)made;
}
