/* The hot path of the calls instrument: what is done before and after each call that is traced, without a frame of Python.
 *
 * voirkit.probes.call_hooks calls begin() and end() around functions; a call becomes a record of the trace plane, and a mark for each
 * tensor in it.
 * Arguments and results are looked at once, as bytes; what they say is written out (record_values.py) only when no call before had the same.
 * Everything runs under the GIL. Nothing of the program's is kept alive, or asked anything that its own code would answer.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef Py_GIL_DISABLED
#error "This relies on the GIL; a free-threaded Python records no calls."
#endif

#include "_calls_summary.h"

enum { METHOD = 1, MODULE = 2 }; /* of a target, as in record_functions.py */
enum { MOST_SETS = 1 << 16, MOST_BYTES = 1 << 25, MOST_TARGETS = 1 << 16, PLACES_OF_OPERANDS = 1 << 10, TIMED = 64, OFF = 0, ON = 1 };

/* as voirkit/probes/call_hooks.py wants it */
typedef struct {
    int (*begin)(int64_t number, PyObject *callable, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, void *state[4]);
    void (*end)(int64_t number, PyObject *value, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, void *state[4]);
} entry_hooks;

/* as voirkit/trace/_recorder.c has it */
typedef struct {
    int version;
    int (*put)(int64_t start, int64_t duration, int64_t value, uint32_t args, uint32_t name);
    const int *mode;
    const uint32_t *inherited;
} recorder_api;

static recorder_api *recorder;
static PyObject *span; /* where there is no such */
static target **targets;
static uint32_t target_count;
static open_call *unused;
static int is_on;
static _Thread_local int quiet;
static uint32_t operand_name;
static PyObject *on_name, *on_class, *on_set, *on_place, *on_tick;
static int64_t calls, records, own_ns, beyond;
static uint32_t fresh; /* functions that were called for the first time and are not in called() yet */

static struct { uint64_t hash; uint8_t *key; uint32_t n, args; } *sets;
static uint32_t set_count, set_size;
static size_t set_bytes;
static struct { uint32_t at, args; } places[PLACES_OF_OPERANDS];

static inline int64_t clock_ns(void) {
    struct timespec t;
#ifdef __APPLE__
    clock_gettime(CLOCK_UPTIME_RAW, &t); /* what perf_counter reads there */
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int raise_it(void *exc) {
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)exc), exc);
    Py_DECREF((PyObject *)exc);
    return -1;
}

/* An exception is set that is not voirkit's: a signal handler of the program raised it. It is raised when the program goes on. */
static void raise_later(void) {
    PyObject *type, *value, *trace;
    if (!PyErr_Occurred())
        return;
    if (PyErr_ExceptionMatches(PyExc_RecursionError) || PyErr_ExceptionMatches(PyExc_MemoryError)) {
        PyErr_Clear();
        return;
    }
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value == NULL || Py_AddPendingCall(raise_it, value) < 0)
        Py_XDECREF(value);
    Py_XDECREF(type);
    Py_XDECREF(trace);
}

static uint32_t number_of(PyObject *answer) { /* steals it; 0: none */
    long long number = answer == NULL ? -1 : PyLong_AsLongLong(answer);
    Py_XDECREF(answer);
    if (number >= 0 && number < UINT32_MAX)
        return (uint32_t)number;
    raise_later();
    return 0;
}

static int is_old(uint32_t args) { /* of before a fork, or before there was a file: its line may not be there */
    return recorder != NULL && args != 0 && args <= *recorder->inherited;
}

static void put(int64_t start, int64_t end, int64_t value, uint32_t args, uint32_t name) {
    records++;
    if (recorder != NULL) {
        if (recorder->put(start, end - start, value, args, name) < 0)
            raise_later();
        return;
    }
    PyObject *done = PyObject_CallFunction(span, "ILLIL", name, (long long)start, (long long)end, args, (long long)value);
    if (done == NULL)
        raise_later();
    Py_XDECREF(done);
}

/* Sets of arguments that have a number. */

static uint64_t hash_of(const uint8_t *key, size_t n) {
    uint64_t h = n * 0x9E3779B97F4A7C15u, w;
    for (; n >= 8; key += 8, n -= 8) {
        memcpy(&w, key, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    w = 0;
    memcpy(&w, key, n);
    h = (h ^ w) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
}

static int grow_sets(void) {
    uint32_t size = set_size ? set_size * 2 : 2048;
    __typeof__(sets) made = calloc(size, sizeof *sets);
    if (made == NULL)
        return 0;
    for (uint32_t i = 0; i < set_size; i++)
        if (sets[i].key != NULL) {
            uint32_t at = (uint32_t)sets[i].hash & (size - 1);
            while (made[at].key != NULL)
                at = (at + 1) & (size - 1);
            made[at] = sets[i];
        }
    free(sets);
    sets = made;
    set_size = size;
    return 1;
}

/* The number of the arguments that a call had; 0: it has none, or there are more than are kept. */
static uint32_t args_of(open_call *o) {
    if (recorder != NULL && *recorder->mode != ON) /* it is only counted: nothing is written any more */
        return 0;
    uint64_t hash = hash_of(o->key, o->used);
    if (set_size == 0 && !grow_sets())
        return 0;
    uint32_t at = (uint32_t)hash & (set_size - 1);
    for (; sets[at].key != NULL; at = (at + 1) & (set_size - 1))
        if (sets[at].hash == hash && sets[at].n == o->used && memcmp(sets[at].key, o->key, o->used) == 0) {
            if (!is_old(sets[at].args))
                return sets[at].args;
            break;
        }
    int is_new = sets[at].key == NULL;
    if (is_new && (set_count >= MOST_SETS || set_bytes + o->used > MOST_BYTES)) {
        beyond++;
        return 0;
    }
    quiet++;
    PyObject *key = PyBytes_FromStringAndSize((char *)o->key, o->used);
    uint32_t args = key == NULL ? 0 : number_of(PyObject_CallOneArg(on_set, key));
    Py_XDECREF(key);
    quiet--;
    if (args == 0)
        return 0;
    o->of->sets += (uint32_t)is_new;
    if (set_count * 2 >= set_size && !grow_sets())
        return args;
    for (at = (uint32_t)hash & (set_size - 1); sets[at].key != NULL; at = (at + 1) & (set_size - 1)) /* who interrupted may have grown them */
        if (sets[at].hash == hash && sets[at].n == o->used && memcmp(sets[at].key, o->key, o->used) == 0) {
            sets[at].args = args;
            return args;
        }
    uint8_t *copy = malloc(o->used ? o->used : 1);
    if (copy != NULL) {
        memcpy(copy, o->key, o->used);
        sets[at].hash = hash;
        sets[at].n = o->used;
        sets[at].args = args;
        sets[at].key = copy;
        set_count++;
        set_bytes += o->used;
    }
    return args;
}

static uint32_t args_of_place(uint32_t at) {
    uint32_t code = at + 1, i = (at * 2654435761u >> 20) & (PLACES_OF_OPERANDS - 1);
    if (places[i].at == code && !is_old(places[i].args))
        return places[i].args;
    quiet++;
    PyObject *answer = PyObject_CallFunction(on_place, "III", at & 3, at >> 2 & 0x3FFF, at >> 16);
    uint32_t args = number_of(answer);
    quiet--;
    places[i].at = args ? code : 0;
    places[i].args = args;
    return args;
}

/* Calls. */

/* Before what says that a step begins, whether calls are recorded now or not. */
static int tick(int64_t number, PyObject *Py_UNUSED(callable), PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs),
                PyObject *Py_UNUSED(kwnames), void *state[4]) {
    (void)state;
    quiet++;
    PyObject *done = PyObject_CallFunction(on_tick, "L", (long long)number);
    quiet--;
    if (done == NULL)
        raise_later();
    Py_XDECREF(done);
    return 0;
}

static uint32_t name_of(target *t, int64_t number, PyObject *first) {
    known_type *k = NULL;
    uint32_t *name = &t->name;
    if (t->kind & MODULE && first != NULL) {
        k = type_of(Py_TYPE(first));
        if (k->number)
            name = &k->name;
    }
    if (*name == 0) {
        quiet++;
        PyObject *answer = name == &t->name ? PyObject_CallFunction(on_name, "L", (long long)number) : PyObject_CallOneArg(on_class, (PyObject *)Py_TYPE(first));
        uint32_t found = number_of(answer);
        quiet--;
        if (k != NULL && k->type != Py_TYPE(first))
            return found;
        *name = found;
    }
    return *name;
}

static int begin(int64_t number, PyObject *Py_UNUSED(callable), PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, void *state[4]) {
    if (number < 0 || number >= target_count || quiet)
        return 0;
    target *t = targets[number];
    if (!t->called) {
        t->called = 1;
        fresh++;
    }
    if (!is_on || (recorder != NULL && *recorder->mode == OFF))
        return 0;
    int64_t asked = ++calls % TIMED ? 0 : clock_ns();
    open_call *o = unused;
    if (o != NULL)
        unused = o->link;
    else if ((o = malloc(sizeof *o)) == NULL)
        return 0;
    o->of = t;
    o->limit = KEY - AT_END;
    o->operands = o->full = o->traced = 0;
    uint32_t which = (uint32_t)number;
    memcpy(o->key, &which, 4);
    o->key[4] = t->kind & METHOD;
    o->used = 5;
    o->object = t->kind & METHOD && nargs > 0 ? (int64_t)(uintptr_t)args[0] : 0;
    o->name = name_of(t, number, nargs > 0 ? args[0] : NULL);
    for (Py_ssize_t i = 0; i < nargs && !o->full; i++)
        put_value(o, args[i], ARGS | (uint32_t)(i & 0x3FFF) << 2, 0);
    Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t i = 0; i < keywords && !o->full; i++) {
        uint16_t word = word_number(PyTuple_GET_ITEM(kwnames, i));
        put_number(o, 'K', &word, 2);
        put_value(o, args[nargs + i], KWARGS | (uint32_t)(word & 0x3FFF) << 2, 0);
    }
    state[0] = o;
    o->start = clock_ns();
    o->spent = asked ? o->start - asked : -1;
    return 1;
}

static void record(open_call *o, int64_t end) {
    if (o->traced)
        return;
    uint32_t args = args_of(o);
    for (int i = 0; i < o->operands; i++)
        put(o->start, o->start, o->operand[i].id, args_of_place(o->operand[i].at), operand_name);
    put(o->start, end, o->object, args, o->name);
}

static void end(int64_t Py_UNUSED(number), PyObject *value, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs),
                PyObject *Py_UNUSED(kwnames), void *state[4]) {
    int64_t ended = clock_ns();
    open_call *o = state[0];
    PyObject *type = NULL, *raised = NULL, *trace = NULL;
    o->limit = KEY;
    if (value != NULL) {
        put_tag(o, 'R');
        put_value(o, value, RETURNS, 0);
    }
    else {
        PyErr_Fetch(&type, &raised, &trace);
        if (type != NULL && PyType_Check(type) && !PyErr_GivenExceptionMatches(type, PyExc_StopIteration)) {
            known_type *k = type_of((PyTypeObject *)type);
            put_number(o, 'E', &k->number, 2);
        }
    }
    record(o, ended);
    if (o->spent >= 0)
        own_ns += (o->spent + clock_ns() - ended) * TIMED;
    o->link = unused;
    unused = o;
    if (value == NULL)
        PyErr_Restore(type, raised, trace);
}

/* For record.py. */

static entry_hooks hooks = {begin, end}, ticks = {tick, end};

static PyObject *calls_hooks(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    return PyCapsule_New(&hooks, "voirkit.entry.hooks", NULL);
}

static PyObject *calls_ticks(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    return PyCapsule_New(&ticks, "voirkit.entry.hooks", NULL);
}

static PyObject *calls_install(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *f[8], *api, **to[] = {&span, &on_type, &on_word, &on_name, &on_class, &on_set, &on_place, &on_tick};
    if (!PyArg_ParseTuple(args, "OOOOOOOOO", &api, &f[0], &f[1], &f[2], &f[3], &f[4], &f[5], &f[6], &f[7]))
        return NULL;
    recorder = NULL;
    if (api != Py_None && (recorder = PyCapsule_GetPointer(api, "voirkit.trace._recorder.api")) == NULL)
        return NULL;
    for (int i = 0; i < 8; i++)
        Py_XSETREF(*to[i], f[i] == Py_None ? NULL : Py_NewRef(f[i]));
    for (uint32_t i = 0; i < set_size; i++)
        free(sets[i].key);
    free(sets);
    sets = NULL;
    set_size = set_count = 0;
    set_bytes = 0;
    memset(places, 0, sizeof places);
    for (size_t i = 0; i < TYPES; i++)
        Py_CLEAR(types[i].ref);
    memset(types, 0, sizeof types);
    for (size_t i = 0; i < WORDS; i++)
        Py_CLEAR(words[i].word);
    memset(words, 0, sizeof words);
    type_count = word_count = 0;
    calls = records = own_ns = beyond = 0;
    Py_RETURN_NONE;
}

static PyObject *calls_add(PyObject *Py_UNUSED(module), PyObject *kind) {
    long wanted = PyLong_AsLong(kind);
    if (wanted == -1 && PyErr_Occurred())
        return NULL;
    if (target_count % 1024 == 0) {
        target **grown = target_count < MOST_TARGETS ? realloc(targets, (target_count + 1024) * sizeof *targets) : NULL;
        if (grown == NULL)
            return PyErr_NoMemory();
        targets = grown;
    }
    if ((targets[target_count] = calloc(1, sizeof **targets)) == NULL)
        return PyErr_NoMemory();
    targets[target_count]->kind = (uint8_t)wanted;
    return PyLong_FromUnsignedLong(target_count++);
}

static PyObject *calls_called(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found != NULL && fresh && i < target_count; i++)
        if (targets[i]->called == 1) {
            PyObject *number = PyLong_FromUnsignedLong(i);
            if (number == NULL || PyList_Append(found, number) < 0)
                Py_CLEAR(found);
            Py_XDECREF(number);
            targets[i]->called = 2;
        }
    fresh = 0;
    return found;
}

static PyObject *calls_switch(PyObject *Py_UNUSED(module), PyObject *args) {
    if (!PyArg_ParseTuple(args, "iI", &is_on, &operand_name))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *calls_quiet(PyObject *Py_UNUSED(module), PyObject *more) {
    long by = PyLong_AsLong(more);
    if (by == -1 && PyErr_Occurred())
        PyErr_Clear();
    quiet += (int)by;
    Py_RETURN_NONE;
}

static PyObject *calls_totals(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    return Py_BuildValue("LLLL", (long long)calls, (long long)records, (long long)own_ns, (long long)beyond);
}

static PyObject *calls_forked(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    calls = records = own_ns = 0;
    Py_RETURN_NONE;
}

static PyObject *calls_ask(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *modes, *table;
    if (!PyArg_ParseTuple(args, "OO!", &modes, &PyDict_Type, &table))
        return NULL;
    Py_XSETREF(ask_modes, Py_NewRef(modes));
    Py_XSETREF(codes, Py_NewRef(table));
    Py_RETURN_NONE;
}

static PyObject *calls_read(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned long long f[6], strange;
    Py_ssize_t at, keys_at;
    if (!PyArg_ParseTuple(args, "KKKKKKnnK", &f[0], &f[1], &f[2], &f[3], &f[4], &f[5], &at, &keys_at, &strange))
        return NULL;
    torch_c.sizes = (void *)(uintptr_t)f[1];
    torch_c.dtype = (void *)(uintptr_t)f[2];
    torch_c.device = (void *)(uintptr_t)f[3];
    torch_c.index = (void *)(uintptr_t)f[4];
    torch_c.grad = (void *)(uintptr_t)f[5];
    torch_c.at = at;
    torch_c.keys_at = keys_at;
    torch_c.strange = strange;
    torch_c.dim = (void *)(uintptr_t)f[0];
    Py_RETURN_NONE;
}

/* What is read of a tensor: (dtype, device, index, requires grad, dims); None: nothing. */
static PyObject *calls_tensor(PyObject *Py_UNUSED(module), PyObject *tensor) {
    seen_tensor t;
    if (!read_tensor(tensor, &t))
        Py_RETURN_NONE;
    PyObject *dims = PyTuple_New(t.ndim > 8 ? 8 : t.ndim);
    for (Py_ssize_t i = 0; dims != NULL && i < PyTuple_GET_SIZE(dims); i++)
        PyTuple_SET_ITEM(dims, i, PyLong_FromLongLong(t.dims[i]));
    return dims == NULL ? NULL : Py_BuildValue("iiiiN", t.dtype, t.device, t.index, t.grad, dims);
}

/* The words of an object's memory, at most n: to find what stands where in a tensor that is known. */
static PyObject *calls_words(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned long long from;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "Kn", &from, &n))
        return NULL;
    PyObject *found = PyTuple_New(n);
    for (Py_ssize_t i = 0; found != NULL && i < n; i++)
        PyTuple_SET_ITEM(found, i, PyLong_FromUnsignedLongLong(((uint64_t *)(uintptr_t)from)[i]));
    return found;
}

static PyMethodDef methods[] = {
    {"hooks", calls_hooks, METH_NOARGS, "What is called before and after a call."},
    {"ticks", calls_ticks, METH_NOARGS, "What tells tick() before a call."},
    {"install", calls_install, METH_VARARGS, "install(recorder's api or None, span, type, word, name, class, set, place, tick)"},
    {"add", calls_add, METH_O, "add(kind) -> the number of one more function"},
    {"called", calls_called, METH_NOARGS, "The numbers of functions that have been called since this was asked."},
    {"switch", calls_switch, METH_VARARGS, "switch(on, name of operands)"},
    {"quiet", calls_quiet, METH_O, "Record nothing in this thread as long as the sum of what was given here is not 0."},
    {"totals", calls_totals, METH_NOARGS, "(calls, records, own ns, calls whose arguments were beyond what is kept)"},
    {"forked", calls_forked, METH_NOARGS, "This is a forked child."},
    {"ask", calls_ask, METH_VARARGS, "ask(modes, codes): read tensors by their attributes."},
    {"read", calls_read, METH_VARARGS, "read(dim, sizes, dtype, device, index, grad, at, keys_at, strange): read tensors with these functions."},
    {"tensor", calls_tensor, METH_O, "(dtype, device, index, requires grad, dims) as read; None"},
    {"words", calls_words, METH_VARARGS, "words(address, n)"},
    {NULL},
};

static int execute(PyObject *module) {
    word_shape = PyUnicode_InternFromString("shape");
    word_dtype = PyUnicode_InternFromString("dtype");
    word_device = PyUnicode_InternFromString("device");
    word_type = PyUnicode_InternFromString("type");
    word_index = PyUnicode_InternFromString("index");
    word_grad = PyUnicode_InternFromString("requires_grad");
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "one interpreter in a process can have it");
        return -1;
    }
    return word_shape && word_dtype && word_device && word_type && word_index && word_grad ? PyModule_AddStringConstant(module, "NAME", "c") : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
                                   {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
                                   {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "voirkit_instruments.calls._calls", .m_doc = "The hot path of the calls instrument.", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__calls(void) {
    return PyModuleDef_Init(&definition);
}
