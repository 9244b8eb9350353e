/* Part of _entry.c: the table of what is watched, and the telling of a call to all who watch it. */

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
