/* Calls of chosen functions are seen on their way in and out, in the object that is called: by its vectorcall pointer.
 *
 * Nothing of that can be seen from Python, and no code changes: functions keep their identity, code and frames, and who has them already
 * calls them so too. It works for functions of Python (but on 3.11, which calls those without asking: see call_hooks.py), for builtin
 * functions and for method descriptors. call_hooks.py is what others use. Checked with CPython 3.10 to 3.13, whose sources say:
 *
 * - 3.12 and later inline a call only where the pointer is the usual one, and PyFunction_SetVectorcall makes call sites look again;
 * - 3.11 and later call C functions of certain flags from specialised sites, without the pointer; such flags are compared as a whole, so
 *   that one more that means nothing afterwards (METH_COEXIST) sends these sites to the pointer;
 * - method descriptors are bound in one place (tp_descr_get of their type), to objects with a pointer of their own.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <structmember.h>
#include <stddef.h>

#ifdef Py_GIL_DISABLED
#error "This relies on the GIL."
#endif

/* What is told of calls that are entered: an extension hands it over in a PyCapsule named "voirkit.entry.hooks", for ever.
 *
 * Under the GIL, on the program's thread, in the middle of its call: neither may raise, nor call what the program could notice. What is done
 * inside of them is not told. args, nargs and kwnames are as in vectorcall: the values of keywords follow the positional ones, self comes
 * first; of Python functions on 3.11 as near to it as can be known, and nothing at the end (args NULL).
 */
#define VOIRKIT_ENTRY_HOOKS "voirkit.entry.hooks"

typedef struct {
    /* Before a call. 0: its end is not to be told. state: four words for this call alone. */
    int (*begin)(int64_t number, PyObject *callable, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, void *state[4]);
    /* After it. value NULL: it raised, and the exception is set, to be left as it is. */
    void (*end)(int64_t number, PyObject *value, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, void *state[4]);
} voirkit_entry_hooks;

enum { NEAR = 32, PARAMETERS = 64, DEEP = 1000, LEFT = 600, MOST_NUMBERS = 1 << 24, TOGETHER = 4 };
enum { FUNCTION, BUILTIN, DESCRIPTOR };

typedef struct {
    PyObject_HEAD
    const voirkit_entry_hooks *hooks; /* NULL: the three of Python */
    PyObject *capsule, *begin, *end, *failed;
    struct watch *first, **by_number;
    int64_t numbers;
    int on, broken;
} Entries;

/* A callable that some want to be told of, and one of those who do. Neither is ever freed, since calls may be open, and bound methods that
 * were made live on. */
typedef struct watch {
    struct watch *next, *next_of_owner;
    struct site *site;
    Entries *owner; /* NULL: removed */
    int64_t number; /* -1: not told */
    int deaf, on;
} watch;

typedef struct site {
    PyObject *ref; /* a weak reference, or the callable itself where that cannot be */
    PyObject *callable; /* compared only */
    watch *first;
    vectorcallfunc before, bound_before; /* NULL: that of a builtin that has none */
    PyMethodDef *own, other; /* own: NULL if the other is not used */
    int kind, on, placed, deep, code; /* on: how many watch */
} site;

/* The table of what is watched, and the reports of a call to all who watch it. */

static struct { PyObject *key; site *value; } *table;
static size_t places, taken;

/* Who is told of a call that runs. */
typedef struct {
    int n, deaf;
    struct { watch *who; void *state[4]; } told[TOGETHER];
} open_call;

static _Thread_local struct {
    int deaf, busy, depth;
    Py_ssize_t open, room; /* of calls in rewritten code */
    open_call *far;
    open_call near[NEAR];
} here;

static inline size_t place_of(PyObject *key) {
    size_t at = ((uintptr_t)key >> 4) * 0x9E3779B97F4A7C15u >> 20 & (places - 1);
    while (table[at].key != NULL && table[at].key != key)
        at = (at + 1) & (places - 1);
    return at;
}

static site *site_of(PyObject *callable) {
    return places ? table[place_of(callable)].value : NULL;
}

static int remember(PyObject *key, site *value) {
    if (2 * (taken + 1) > places) {
        size_t n = places ? 2 * places : 256, before = places;
        void *old = table, *room = PyMem_Calloc(n, sizeof *table);
        if (room == NULL)
            return -1;
        table = room;
        places = n;
        for (size_t i = 0; i < before; i++) {
            size_t size = sizeof *table;
            PyObject *k = *(PyObject **)((char *)old + i * size);
            if (k != NULL)
                memcpy(&table[place_of(k)], (char *)old + i * size, size);
        }
        PyMem_Free(old);
    }
    size_t at = place_of(key);
    taken += table[at].key == NULL;
    table[at].key = key;
    table[at].value = value;
    return 0;
}

/* The hooks. */

static void broke(Entries *owner) {
    owner->broken = 1;
    PyErr_WriteUnraisable((PyObject *)owner);
}

static int begin_in_python(watch *w, PyObject *callable, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    Entries *owner = w->owner;
    PyObject *positional = PyTuple_New(n), *named = PyDict_New(), *answer = NULL;
    int told = 0;
    if (positional != NULL && named != NULL) {
        for (Py_ssize_t i = 0; i < n; i++)
            PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
        for (Py_ssize_t i = 0; kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++)
            PyDict_SetItem(named, PyTuple_GET_ITEM(kwnames, i), args[n + i]);
        answer = PyObject_CallFunction(owner->begin, "LOOO", (long long)w->number, callable, positional, named);
    }
    if (answer == NULL)
        broke(owner);
    else
        told = PyObject_IsTrue(answer) == 1;
    Py_XDECREF(positional);
    Py_XDECREF(named);
    Py_XDECREF(answer);
    return told;
}

/* While hooks run, what the program has for tracing and profiling is told nothing. */
static void busy(int more) {
    here.busy += more;
    PyThreadState_Get()->tracing += more;
}

static void tell_begin(open_call *call, site *at, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    call->n = call->deaf = 0;
    busy(1);
    for (watch *w = at->first, *next; w != NULL; w = next) {
        next = w->next;
        if (!w->on || w->owner == NULL || w->owner->broken)
            continue;
        call->deaf |= w->deaf;
        if (w->number < 0 || call->n == TOGETHER)
            continue;
        void **state = call->told[call->n].state;
        int told = w->owner->hooks != NULL ? w->owner->hooks->begin(w->number, at->callable, args, n, kwnames, state)
                                           : begin_in_python(w, at->callable, args, n, kwnames);
        if (PyErr_Occurred())
            broke(w->owner); /* a bug of an instrument's is told, and does not reach the program */
        else if (told)
            call->told[call->n++].who = w;
    }
    busy(-1);
    here.deaf += call->deaf;
}

static void tell_end(open_call *call, PyObject *value, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    here.deaf -= call->deaf;
    if (call->n == 0)
        return;
    busy(1);
    for (int i = call->n - 1; i >= 0; i--) {
        watch *w = call->told[i].who;
        Entries *owner = w->owner;
        if (owner == NULL || owner->broken)
            continue;
        if (owner->hooks != NULL) {
            owner->hooks->end(w->number, value, args, n, kwnames, call->told[i].state);
            if (value != NULL && PyErr_Occurred())
                broke(owner);
            continue;
        }
        PyObject *type, *exc, *trace, *answer;
        PyErr_Fetch(&type, &exc, &trace);
        PyErr_NormalizeException(&type, &exc, &trace);
        answer = PyObject_CallFunction(value != NULL ? owner->end : owner->failed, "LO", (long long)w->number,
                                       value != NULL ? value : exc != NULL ? exc : Py_None);
        if (answer == NULL)
            broke(owner);
        Py_XDECREF(answer);
        PyErr_Restore(type, exc, trace);
    }
    busy(-1);
}

/* A call by the pointer. */

static PyObject *go_on(vectorcallfunc before, PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    if (before != NULL)
        return before(callable, args, nargsf, kwnames);
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    PyObject *positional = PyTuple_New(n), *named = NULL, *result = NULL;
    if (positional == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < n; i++)
        PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    if (kwnames != NULL && PyTuple_GET_SIZE(kwnames)) {
        if ((named = PyDict_New()) == NULL)
            goto done;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); i++)
            if (PyDict_SetItem(named, PyTuple_GET_ITEM(kwnames, i), args[n + i]) < 0)
                goto done;
    }
    result = Py_TYPE(callable)->tp_call(callable, positional, named);
done:
    Py_DECREF(positional);
    Py_XDECREF(named);
    return result;
}

static void place(site *at);

#if PY_VERSION_HEX >= 0x030C0000
/* From 3.12 on a call of Python by Python takes nothing of the C stack, and one that is entered does: of that there is less than a program
 * may have asked for (sys.setrecursionlimit). 3.12 has 1500 calls of it. */
static int is_deep(int depth) {
#if PY_VERSION_HEX < 0x030E0000
    return depth > DEEP || PyThreadState_Get()->c_recursion_remaining < LEFT;
#else
    return depth > DEEP;
#endif
}
#endif

static PyObject *entered(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    site *at = site_of(callable);
    if (here.deaf || here.busy || !at->placed)
        return go_on(at->before, callable, args, nargsf, kwnames);
    open_call call;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    tell_begin(&call, at, args, n, kwnames);
#if PY_VERSION_HEX >= 0x030C0000
    if (is_deep(++here.depth) && at->kind == FUNCTION) {
        at->deep = 1;
        place(at);
    }
#endif
    PyObject *result = go_on(at->before, callable, args, nargsf, kwnames);
#if PY_VERSION_HEX >= 0x030C0000
    here.depth--;
#endif
    tell_end(&call, result, args, n, kwnames);
    return result;
}

/* A call of a bound method of C. */
static PyObject *bound_entered(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    PyCFunctionObject *bound = (PyCFunctionObject *)callable;
    site *at = (site *)((char *)bound->m_ml - offsetof(site, other));
    Py_ssize_t n = PyVectorcall_NARGS(nargsf), all = n + (kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0);
    if (here.deaf || here.busy || !at->placed || all >= PARAMETERS)
        return go_on(at->bound_before, callable, args, nargsf, kwnames);
    open_call call;
    PyObject *with_self[PARAMETERS + 1];
    with_self[0] = bound->m_self;
    memcpy(with_self + 1, args, all * sizeof *args);
    tell_begin(&call, at, with_self, n + 1, kwnames);
    PyObject *result = go_on(at->bound_before, callable, args, nargsf, kwnames);
    tell_end(&call, result, with_self, n + 1, kwnames);
    return result;
}

static descrgetfunc bind_before;
static Py_ssize_t descriptors; /* that are in place */

static PyObject *bind(PyObject *descriptor, PyObject *object, PyObject *type) {
    PyObject *bound = bind_before(descriptor, object, type);
    if (bound != NULL && ((PyMethodDescrObject *)descriptor)->vectorcall == entered && PyCFunction_Check(bound)) {
        site *at = site_of(descriptor);
        PyCFunctionObject *made = (PyCFunctionObject *)bound;
        if (at != NULL && made->m_ml == &at->other && made->vectorcall != bound_entered) {
            at->bound_before = made->vectorcall;
            made->vectorcall = bound_entered;
        }
    }
    return bound;
}

static void bind_here(int more) {
    if (descriptors == 0 && more > 0 && PyMethodDescr_Type.tp_descr_get != bind) {
        bind_before = PyMethodDescr_Type.tp_descr_get;
        PyMethodDescr_Type.tp_descr_get = bind;
    }
    descriptors += more;
    if (descriptors == 0 && PyMethodDescr_Type.tp_descr_get == bind)
        PyMethodDescr_Type.tp_descr_get = bind_before;
}

/* The callable itself, borrowed, as long as there is one. */
static PyObject *callable_of(site *at) {
    if (at->ref == at->callable)
        return at->ref;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    if (PyWeakref_GetRef(at->ref, &found) < 1)
        return NULL;
    Py_DECREF(found); /* under the GIL, and nothing runs until it has been used */
    return found;
#else
    PyObject *found = PyWeakref_GET_OBJECT(at->ref);
    return found == Py_None ? NULL : found;
#endif
}

static vectorcallfunc *pointer_of(int kind, PyObject *callable) {
    switch (kind) {
    case FUNCTION: return &((PyFunctionObject *)callable)->vectorcall;
    case BUILTIN: return &((PyCFunctionObject *)callable)->vectorcall;
    default: return &((PyMethodDescrObject *)callable)->vectorcall;
    }
}

/* Puts the way in place if somebody is on, and takes it out otherwise. */
static void place(site *at) {
    int on = at->on > 0 && !at->deep;
    PyObject *callable = callable_of(at);
    if (callable == NULL || on == at->placed)
        return;
    if (at->code) {
        at->placed = on;
        return;
    }
    vectorcallfunc *pointer = pointer_of(at->kind, callable), to = on ? entered : at->before;
    if (*pointer != (on ? at->before : entered))
        return; /* somebody else's */
#if PY_VERSION_HEX >= 0x030C0000
    if (at->kind == FUNCTION)
        PyFunction_SetVectorcall((PyFunctionObject *)callable, to);
#endif
    *pointer = to;
    if (at->own != NULL && at->kind == BUILTIN)
        ((PyCFunctionObject *)callable)->m_ml = on ? &at->other : at->own;
    if (at->kind == DESCRIPTOR) {
        ((PyMethodDescrObject *)callable)->d_method = on ? &at->other : at->own;
        bind_here(on ? 1 : -1);
    }
    at->placed = on;
}

static void turn(watch *w, int on) {
    if (w->on != on) {
        w->on = on;
        w->site->on += on ? 1 : -1;
        place(w->site);
    }
}

#include "_entry_code.h"

/* Entries(capsule) or Entries(begin, end, failed). */

static PyObject *entries_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *begin, *end = NULL, *failing = NULL;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "O|OO", &begin, &end, &failing))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "no keywords");
    const voirkit_entry_hooks *hooks = NULL;
    if (failing == NULL && (hooks = PyCapsule_GetPointer(begin, VOIRKIT_ENTRY_HOOKS)) == NULL)
        return NULL;
    Entries *self = (Entries *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->hooks = hooks;
    self->begin = Py_NewRef(begin);
    self->end = Py_XNewRef(end);
    self->failed = Py_XNewRef(failing);
    return (PyObject *)self;
}

static int is_sent_past(int flags) {
#if PY_VERSION_HEX >= 0x030B0000
    return !(flags & METH_VARARGS) && !(flags & METH_COEXIST);
#else
    (void)flags;
    return 0;
#endif
}

#if PY_VERSION_HEX >= 0x030B0000
/* Builtins that specialised call sites know by themselves. */
static int is_special(PyObject *callable) {
    const char *name = ((PyCFunctionObject *)callable)->m_ml->ml_name;
    PyObject *module = ((PyCFunctionObject *)callable)->m_module;
    return module != NULL && PyUnicode_Check(module) && PyUnicode_CompareWithASCIIString(module, "builtins") == 0
           && (strcmp(name, "len") == 0 || strcmp(name, "isinstance") == 0);
}
#endif

static PyObject *number_it(Entries *self, watch *w, int64_t number) {
    if (number < 0)
        Py_RETURN_NONE;
    w->number = number;
    if (number >= self->numbers && number < MOST_NUMBERS) {
        int64_t room = 2 * number + 64;
        watch **more = PyMem_Realloc(self->by_number, room * sizeof *more);
        if (more == NULL)
            return PyErr_NoMemory();
        memset(more + self->numbers, 0, (room - self->numbers) * sizeof *more);
        self->by_number = more;
        self->numbers = room;
    }
    if (number < self->numbers)
        self->by_number[number] = w;
    Py_RETURN_NONE;
}

/* put(number, callable, deaf, code): None, or why not. code: what is called by its way in new code. */
static PyObject *entries_put(Entries *self, PyObject *args) {
    long long number;
    PyObject *callable;
    int deaf, code;
    if (!PyArg_ParseTuple(args, "LOpp", &number, &callable, &deaf, &code))
        return NULL;
    int kind;
    PyMethodDef *def = NULL;
    if (PyFunction_Check(callable))
        kind = FUNCTION;
    else if (PyCFunction_Check(callable)) {
        kind = BUILTIN;
        def = ((PyCFunctionObject *)callable)->m_ml;
    } else if (Py_IS_TYPE(callable, &PyMethodDescr_Type)) {
        kind = DESCRIPTOR;
        def = ((PyMethodDescrObject *)callable)->d_method;
    } else
        return PyUnicode_FromFormat("is a %s, which is called in a way of its own", Py_TYPE(callable)->tp_name);
#if PY_VERSION_HEX >= 0x030B0000
    if (kind == BUILTIN && is_special(callable))
        return PyUnicode_FromString("is called by python without looking at it");
#endif
    site *at = site_of(callable);
    if (at == NULL || callable_of(at) != callable) {
        vectorcallfunc before = *pointer_of(kind, callable);
        if (before == bound_entered)
            return PyUnicode_FromString("is a method that is told of by itself");
        if ((at = PyMem_Calloc(1, sizeof *at)) == NULL)
            return PyErr_NoMemory();
        if ((at->ref = PyWeakref_NewRef(callable, NULL)) == NULL) {
            PyErr_Clear();
            at->ref = Py_NewRef(callable);
        }
        at->callable = callable;
        at->kind = kind;
        at->code = code;
        at->before = before;
        if (kind == DESCRIPTOR || (def != NULL && is_sent_past(def->ml_flags))) {
            at->other = *def;
            at->other.ml_flags |= METH_COEXIST;
            at->own = def;
        }
        if (remember(callable, at) < 0)
            return PyErr_NoMemory();
    }
    watch **last = &at->first, *w;
    for (; (w = *last) != NULL; last = &w->next)
        if (w->owner == self) {
            if (number >= 0 && w->number >= 0 && w->number != number)
                return PyUnicode_FromString("is watched under another number");
            w->deaf |= deaf;
            return number_it(self, w, number);
        }
    if ((w = PyMem_Calloc(1, sizeof *w)) == NULL)
        return PyErr_NoMemory();
    w->site = at;
    w->owner = self;
    w->number = -1;
    w->deaf = deaf;
    w->next_of_owner = self->first;
    self->first = w;
    *last = w;
    if (self->on)
        turn(w, 1);
    return number_it(self, w, number);
}

/* turn(numbers, on): only these functions; the others stay as they are. */
static PyObject *entries_turn(Entries *self, PyObject *args) {
    PyObject *numbers, *iterator, *item;
    int on;
    if (!PyArg_ParseTuple(args, "Op", &numbers, &on) || (iterator = PyObject_GetIter(numbers)) == NULL)
        return NULL;
    while ((item = PyIter_Next(iterator)) != NULL) {
        long long number = PyLong_AsLongLong(item);
        Py_DECREF(item);
        if (number >= 0 && number < self->numbers && self->by_number[number] != NULL)
            turn(self->by_number[number], on);
    }
    Py_DECREF(iterator);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *entries_way(Entries *Py_UNUSED(self), PyObject *args) {
    PyObject *function, *names;
    int positional, named, rest, rest_named;
    if (!PyArg_ParseTuple(args, "OO!iipp", &function, &PyTuple_Type, &names, &positional, &named, &rest, &rest_named))
        return NULL;
    site *at = site_of(function);
    if (at == NULL || positional + named + rest + rest_named > PARAMETERS - 2)
        return PyErr_Format(PyExc_ValueError, "is not watched, or has too many parameters");
    Way *way = (Way *)way_type->tp_alloc(way_type, 0);
    if (way == NULL)
        return NULL;
    way->call = way_call;
    way->of = at;
    way->names = Py_NewRef(names);
    way->positional = positional;
    way->named = named;
    way->rest = rest;
    way->rest_named = rest_named;
    return (PyObject *)way;
}

static PyObject *entries_on(Entries *self, PyObject *Py_UNUSED(none)) {
    self->on = 1;
    for (watch *w = self->first; w != NULL; w = w->next_of_owner)
        turn(w, 1);
    Py_RETURN_NONE;
}

static PyObject *entries_off(Entries *self, PyObject *Py_UNUSED(none)) {
    self->on = 0;
    for (watch *w = self->first; w != NULL; w = w->next_of_owner)
        turn(w, 0);
    Py_RETURN_NONE;
}

static PyObject *entries_remove(Entries *self, PyObject *none) {
    Py_DECREF(entries_off(self, none));
    for (watch *w = self->first; w != NULL; w = w->next_of_owner) {
        watch **at = &w->site->first;
        w->owner = NULL;
        while (*at != w)
            at = &(*at)->next;
        *at = w->next; /* and its own stays, for who is on its way along it */
    }
    self->first = NULL;
    PyMem_Free(self->by_number);
    self->by_number = NULL;
    self->numbers = 0;
    Py_RETURN_NONE;
}

static PyObject *entries_deep(Entries *self, PyObject *Py_UNUSED(none)) {
    PyObject *found = PyList_New(0);
    for (watch *w = self->first; found != NULL && w != NULL; w = w->next_of_owner) {
        PyObject *number = w->site->deep ? PyLong_FromLongLong(w->number) : NULL;
        if (number != NULL)
            PyList_Append(found, number);
        Py_XDECREF(number);
    }
    return found;
}

static void entries_dealloc(Entries *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(entries_remove(self, NULL));
    Py_XDECREF(self->begin);
    Py_XDECREF(self->end);
    Py_XDECREF(self->failed);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyMethodDef entries_methods[] = {
    {"put", (PyCFunction)entries_put, METH_VARARGS, NULL},
    {"way", (PyCFunction)entries_way, METH_VARARGS, NULL},
    {"on", (PyCFunction)entries_on, METH_NOARGS, NULL},
    {"turn", (PyCFunction)entries_turn, METH_VARARGS, NULL},
    {"off", (PyCFunction)entries_off, METH_NOARGS, NULL},
    {"remove", (PyCFunction)entries_remove, METH_NOARGS, NULL},
    {"deep", (PyCFunction)entries_deep, METH_NOARGS, NULL},
    {NULL},
};
static PyType_Slot entries_slots[] = {
    {Py_tp_new, entries_new}, {Py_tp_dealloc, entries_dealloc}, {Py_tp_methods, entries_methods}, {0, NULL},
};
static PyType_Spec entries_spec = {"voirkit.probes._entry.Entries", sizeof(Entries), 0, Py_TPFLAGS_DEFAULT, entries_slots};

#if PY_VERSION_HEX >= 0x030D0000
static PyObject *allocated(PyTypeObject *type, Py_ssize_t n) {
    return PyType_GenericAlloc(type, n);
}

/* making(type, looked): call sites that make objects of a class run its __init__ without asking, from 3.13 on; or no more (looked). They
 * leave alone what has an allocator of its own. Once a class, since a class can be changed some thousand times only. */
static PyObject *making(PyObject *Py_UNUSED(module), PyObject *args) {
    PyTypeObject *type;
    int looked;
    if (!PyArg_ParseTuple(args, "O!p", &PyType_Type, &type, &looked))
        return NULL;
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE && type->tp_alloc == (looked ? PyType_GenericAlloc : allocated)) {
        type->tp_alloc = looked ? allocated : PyType_GenericAlloc;
        if (looked)
            PyType_Modified(type);
    }
    Py_RETURN_NONE;
}
#endif

static PyMethodDef functions[] = {
#if PY_VERSION_HEX >= 0x030D0000
    {"making", making, METH_VARARGS, NULL},
#endif
    {NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_entry", NULL, -1, functions};

static int add_end(PyObject *module, PyTypeObject *type, const char *name, vectorcallfunc call) {
    End *end = (End *)type->tp_alloc(type, 0);
    if (end == NULL)
        return -1;
    end->call = call;
    return PyModule_AddObject(module, name, (PyObject *)end);
}

PyMODINIT_FUNC PyInit__entry(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    way_type = (PyTypeObject *)PyType_FromSpec(&way_spec);
    PyObject *entries = PyType_FromSpec(&entries_spec), *end = PyType_FromSpec(&end_spec);
    if (way_type == NULL || end == NULL || add_end(module, (PyTypeObject *)end, "left", left) < 0
        || add_end(module, (PyTypeObject *)end, "failed", failed) < 0 || entries == NULL || PyModule_AddObject(module, "Entries", entries) < 0)
        return NULL;
    return module;
}
