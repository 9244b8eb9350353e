/* Part of _entry.c: what the rewritten code of functions calls, of which there is some on 3.11 (call_hooks.py): way(parameters...) at the
 * begin, left(value) or failed(exception) at the end. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    site *of;
    PyObject *names; /* of the parameters that can be given by name */
    int positional, named, rest, rest_named;
    uint64_t last;
    PyObject *last_names;
} Way;

static open_call *call_at(Py_ssize_t at) {
    return at < NEAR ? &here.near[at] : &here.far[at - NEAR];
}

static int make_room(void) {
    if (here.open < NEAR || here.open - NEAR < here.room)
        return 0;
    Py_ssize_t room = here.room ? 2 * here.room : 64;
    open_call *far = PyMem_RawRealloc(here.far, room * sizeof *far);
    if (far == NULL)
        return -1;
    here.far = far;
    here.room = room;
    return 0;
}

/* Those of the parameters that are not what the function would have given them; returns whether they can be told. */
static int given(Way *way, PyFunctionObject *function, PyObject *const *params, PyObject **args, Py_ssize_t *n, PyObject **kwnames) {
    PyObject *defaults = function->func_defaults, *named_defaults = function->func_kwdefaults;
    Py_ssize_t last = defaults != NULL ? PyTuple_GET_SIZE(defaults) : 0, first = way->positional - last, m = 0;
    PyObject *more = way->rest ? params[way->positional + way->named] : NULL;
    PyObject *more_named = way->rest_named ? params[way->positional + way->named + way->rest] : NULL;
    uint64_t mask = 0;
    *n = 0;
    *kwnames = NULL;
    if (first < 0 || (more != NULL && !PyTuple_CheckExact(more)) || (more_named != NULL && !PyDict_CheckExact(more_named)))
        return 0; /* the code runs in another function than its own */
    int all = more != NULL && PyTuple_GET_SIZE(more);
    for (int i = 0; i < way->positional; i++) {
        if (!all && i >= first && params[i] == PyTuple_GET_ITEM(defaults, i - first)) {
            if (mask == 0)
                mask = 1;
        } else if (mask == 0) {
            args[(*n)++] = params[i];
        } else {
            mask |= (uint64_t)2 << i;
            args[*n + m++] = params[i];
        }
    }
    if (m == 0)
        mask = 0;
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(more) && *n < PARAMETERS; i++)
        args[(*n)++] = PyTuple_GET_ITEM(more, i);
    for (int i = way->positional; i < way->positional + way->named; i++) {
        PyObject *name = PyTuple_GET_ITEM(way->names, i);
        if (named_defaults != NULL && PyDict_Check(named_defaults) && PyDict_GetItemWithError(named_defaults, name) == params[i])
            continue;
        if (*n + m == PARAMETERS)
            break;
        mask |= (uint64_t)2 << i;
        args[*n + m++] = params[i];
    }
    PyErr_Clear();
    Py_ssize_t plain = m;
    if (more_named != NULL && PyDict_GET_SIZE(more_named)) {
        Py_ssize_t at = 0;
        PyObject *key, *value;
        while (*n + m < PARAMETERS && PyDict_Next(more_named, &at, &key, &value))
            args[*n + m++] = value;
    }
    if (m == 0)
        return 1;
    if (m == plain && mask == way->last && way->last_names != NULL) {
        *kwnames = Py_NewRef(way->last_names);
        return 1;
    }
    if ((*kwnames = PyTuple_New(m)) == NULL) {
        PyErr_Clear();
        return 0;
    }
    Py_ssize_t k = 0, at = 0;
    for (int i = 0; k < plain; i++)
        if (mask & (uint64_t)2 << i)
            PyTuple_SET_ITEM(*kwnames, k++, Py_NewRef(PyTuple_GET_ITEM(way->names, i)));
    PyObject *key, *value;
    while (k < m && PyDict_Next(more_named, &at, &key, &value))
        PyTuple_SET_ITEM(*kwnames, k++, Py_NewRef(key));
    if (m == plain) {
        way->last = mask;
        Py_XSETREF(way->last_names, Py_NewRef(*kwnames));
    }
    return 1;
}

static PyObject *way_call(PyObject *self, PyObject *const *params, size_t Py_UNUSED(nargsf), PyObject *Py_UNUSED(kwnames)) {
    Way *way = (Way *)self;
    site *at = way->of;
    if (make_room() < 0)
        return PyErr_NoMemory();
    Py_ssize_t depth = here.open++;
    open_call made, *call = depth < NEAR ? call_at(depth) : &made;
    call->n = call->deaf = 0;
    if (!here.deaf && !here.busy && at->placed) {
        PyObject *args[PARAMETERS + 1], *names = NULL;
        Py_ssize_t n;
        PyObject *callable = callable_of(at);
        if (callable != NULL && given(way, (PyFunctionObject *)callable, params, args, &n, &names))
            tell_begin(call, at, args, n, names);
        Py_XDECREF(names);
    }
    if (depth >= NEAR)
        *call_at(depth) = made;
    Py_RETURN_NONE;
}

static void left_with(PyObject *value) {
    if (here.open == 0)
        return;
    open_call *call = call_at(here.open - 1), far;
    if (here.open > NEAR) { /* a hook of Python's may move those that are far */
        far = *call;
        call = &far;
    }
    tell_end(call, value, NULL, 0, NULL);
    here.open--;
    if (here.open == 0 && here.far != NULL) {
        PyMem_RawFree(here.far);
        here.far = NULL;
        here.room = 0;
    }
}

/* left and failed: no builtin functions, whose calls a profiler of the program's would be told. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
} End;

static PyObject *left(PyObject *Py_UNUSED(self), PyObject *const *args, size_t Py_UNUSED(nargsf), PyObject *Py_UNUSED(kwnames)) {
    left_with(args[0]);
    return Py_NewRef(args[0]);
}

static PyObject *failed(PyObject *Py_UNUSED(self), PyObject *const *args, size_t Py_UNUSED(nargsf), PyObject *Py_UNUSED(kwnames)) {
    PyErr_Restore(Py_NewRef(Py_TYPE(args[0])), Py_NewRef(args[0]), PyException_GetTraceback(args[0]));
    left_with(NULL);
    PyErr_Clear();
    Py_RETURN_NONE;
}

static void way_dealloc(Way *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->names);
    Py_XDECREF(self->last_names);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static void end_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *itself(PyObject *self, PyObject *Py_UNUSED(memo)) {
    return Py_NewRef(self); /* torch.compile copies the constants of code */
}

static PyMemberDef way_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Way, call), READONLY, NULL},
    {NULL},
};
static PyMemberDef end_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(End, call), READONLY, NULL},
    {NULL},
};
static PyMethodDef constant_methods[] = {
    {"__deepcopy__", itself, METH_O, NULL},
    {NULL},
};
static PyType_Slot end_slots[] = {
    {Py_tp_dealloc, end_dealloc}, {Py_tp_members, end_members}, {Py_tp_methods, constant_methods}, {Py_tp_call, PyVectorcall_Call}, {0, NULL},
};
static PyType_Spec end_spec = {
    "voirkit.probes._entry.End", sizeof(End), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, end_slots,
};
static PyType_Slot way_slots[] = {
    {Py_tp_dealloc, way_dealloc}, {Py_tp_members, way_members}, {Py_tp_methods, constant_methods}, {Py_tp_call, PyVectorcall_Call}, {0, NULL},
};
static PyType_Spec way_spec = {
    "voirkit.probes._entry.Way", sizeof(Way), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, way_slots,
};
static PyTypeObject *way_type;

