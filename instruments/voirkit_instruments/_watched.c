/* A method written in C that is watched without a frame of Python: so that a warning that it gives names the program's line, a traceback has no
 * line of voirkit, and torch.compile has nothing more to look at.
 *
 *     Watched(method, enter, leave)
 *
 * stands in a class in place of the method. From the class it is the method itself; from an object it is called as
 *
 *     began = enter()
 *     result = method(object, *args, **kwargs)
 *     if began is not None and result is not object: leave(began, object, result)
 *     (if began is a tuple, leave(began, None, None) is called also where the object itself or an exception came out)
 *
 * enter and leave must not raise; what they raise is dropped. Wherever this was not built, steps_transfer.py has the same in Python.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stddef.h>

typedef struct {
    PyObject_HEAD
    PyObject *method, *enter, *leave;
} Watched;

typedef struct {
    PyObject_HEAD
    PyObject *watched, *object;
    vectorcallfunc call;
} Bound;

static PyTypeObject *bound_type;

static void tell(PyObject *leave, PyObject *began, PyObject *object, PyObject *result)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *told = PyObject_CallFunctionObjArgs(leave, began, object, result, NULL);
    if (told == NULL)
        PyErr_Clear();
    Py_XDECREF(told);
    PyErr_Restore(type, value, traceback);
}

static PyObject *call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Bound *bound = (Bound *)self;
    Watched *watched = (Watched *)bound->watched;
    PyObject *result, *began = PyObject_CallNoArgs(watched->enter);
    if (began == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) /* KeyboardInterrupt and the like are the program's */
            return NULL;
        PyErr_Clear();
        began = Py_NewRef(Py_None);
    }
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (nargsf & PY_VECTORCALL_ARGUMENTS_OFFSET) {
        PyObject **slot = (PyObject **)args - 1, *saved = *slot;
        *slot = bound->object;
        result = PyObject_Vectorcall(watched->method, slot, n + 1, names);
        *slot = saved;
    } else {
        Py_ssize_t all = n + (names != NULL ? PyTuple_GET_SIZE(names) : 0);
        PyObject **slot = PyMem_Malloc((all + 1) * sizeof(PyObject *));
        if (slot == NULL) {
            Py_DECREF(began);
            return PyErr_NoMemory();
        }
        slot[0] = bound->object;
        for (Py_ssize_t i = 0; i < all; i++)
            slot[i + 1] = args[i];
        result = PyObject_Vectorcall(watched->method, slot, n + 1, names);
        PyMem_Free(slot);
    }
    if (began != Py_None) {
        if (result != NULL && result != bound->object)
            tell(watched->leave, began, bound->object, result);
        else if (PyTuple_Check(began))
            tell(watched->leave, began, Py_None, Py_None);
    }
    Py_DECREF(began);
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

static PyType_Spec bound_spec = {"voirkit_instruments._watched.Bound", sizeof(Bound), 0,
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

static PyObject *watched_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    PyObject *method, *enter, *leave;
    if (!PyArg_ParseTuple(args, "OOO", &method, &enter, &leave))
        return NULL;
    Watched *self = (Watched *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->method = Py_NewRef(method);
    self->enter = Py_NewRef(enter);
    self->leave = Py_NewRef(leave);
    return (PyObject *)self;
}

static int watched_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Watched *)self)->method);
    Py_VISIT(((Watched *)self)->enter);
    Py_VISIT(((Watched *)self)->leave);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int watched_clear(PyObject *self)
{
    Py_CLEAR(((Watched *)self)->method);
    Py_CLEAR(((Watched *)self)->enter);
    Py_CLEAR(((Watched *)self)->leave);
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
    {Py_tp_new, watched_new}, {Py_tp_traverse, watched_traverse}, {Py_tp_clear, watched_clear}, {Py_tp_dealloc, watched_dealloc},
    {Py_tp_descr_get, watched_get}, {0, NULL}};

static PyType_Spec watched_spec = {"voirkit_instruments._watched.Watched", sizeof(Watched), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                   watched_slots};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_watched", NULL, -1, NULL};

PyMODINIT_FUNC PyInit__watched(void)
{
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&watched_spec);
    bound_type = (PyTypeObject *)PyType_FromSpec(&bound_spec);
    if (made == NULL || type == NULL || bound_type == NULL || PyModule_AddObject(made, "Watched", type) < 0)
        return NULL;
    return made;
}
