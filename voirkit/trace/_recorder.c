/* The hot path of the trace plane: a record is 32 bytes stored into a file that is mapped, without a call of Python.
 *
 * The same as plain.py, which is what runs where this could not be built; what files there are, how they grow and what happens when they
 * cannot is decided in recording.py, through the five functions given to install().  Everything here runs under the GIL but two things: what
 * happens when a thread has ended, and in a forked child before Python knows.  It must never raise into the program, block, or take a lock.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#ifdef Py_GIL_DISABLED
#error "This relies on the GIL; a free-threaded Python uses plain.py."
#endif
#if !PY_LITTLE_ENDIAN
#error "The files are little endian; plain.py writes them anywhere."
#endif

#define ENGINE 2 /* as in layout.py */
enum { OFF, ON, REFUSING };
enum { DEEPEST = 32, TRIES = 4 };

typedef struct {
    int64_t start, duration, value;
    uint64_t args_and_name; /* the name in the upper half; stored last, in one piece: a record is there or it is not */
} record;

static const uint64_t THREAD = 0xFFFFFFFF; /* in place of a name: whose the next records are */

/* A segment, its window, and the next free place in it; at any time one thread's or nobody's. Never freed: a thread may hold on to one that
 * another has closed. There are as many as threads that ever recorded at the same time. */
typedef struct writer {
    char *next, *limit, *base;
    Py_ssize_t at;               /* where in the file the window begins */
    PyObject *segment, *window;  /* NULL: no file yet */
    Py_ssize_t markers;
    char announced;              /* a record in it says whose the next are */
    char busy;                   /* a window is being made for it: who interrupts takes another */
    int gone;                    /* its thread has ended; set without the GIL */
    struct writer *link;
} writer;

static writer nobody; /* always full */
static writer *writers;
static pthread_key_t key;
static _Thread_local writer *mine = &nobody;
static _Thread_local int depth;

static int mode;
static unsigned era;                      /* counts how often all windows were taken away */
static uint32_t inherited = UINT32_MAX;   /* arguments up to this one may have no line in the files yet */
static uint32_t highest;                  /* that was inherited */
static uint64_t generation = 1;           /* counts changed() */
static PyObject *on_arrive, *on_grow, *on_resolve, *on_lose, *on_failed;
static PyObject *word_refresh;

static inline int64_t clock_ns(void) {
    struct timespec t;
#ifdef __APPLE__
    clock_gettime(CLOCK_UPTIME_RAW, &t); /* what perf_counter reads there */
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* An exception as one object. */

static PyObject *take_raised(void) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL)
        PyException_SetTraceback(value, trace);
    Py_DECREF(type);
    Py_XDECREF(trace);
    return value;
#endif
}

static void give_raised(PyObject *exc) {
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(exc);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exc)), exc, PyException_GetTraceback(exc));
#endif
}

#if PY_VERSION_HEX < 0x030D0000
#define Py_IsFinalizing _Py_IsFinalizing
#endif

/* Let Python go so many calls deeper than the program may, so that what is recorded at the program's limit is recorded as well. */
enum { DEEPER = 100 };
static void go_deeper(int calls) {
    PyThreadState *thread = PyThreadState_Get();
#if PY_VERSION_HEX >= 0x030C0000
    thread->py_recursion_remaining += calls;
#if PY_VERSION_HEX < 0x030E0000
    thread->c_recursion_remaining += calls;
#endif
#elif PY_VERSION_HEX >= 0x030B0000
    thread->recursion_remaining += calls;
#else
    thread->recursion_depth -= calls;
#endif
}

/* Call one of recording.py's functions. What comes out of it is not its own but the program's, of a signal handler; unless Python is being
 * taken down, when its modules are half empty. */
static PyObject *ask(PyObject *function, PyObject *argument) {
    go_deeper(DEEPER);
    PyObject *result = argument == NULL ? PyObject_CallNoArgs(function) : PyObject_CallOneArg(function, argument);
    go_deeper(-DEEPER);
    if (result == NULL && Py_IsFinalizing()) {
        PyErr_Clear();
        result = Py_NewRef(Py_None);
    }
    return result;
}

static int tell(PyObject *function, uint32_t number) {
    PyObject *argument = PyLong_FromUnsignedLong(number);
    PyObject *result = argument == NULL ? NULL : ask(function, argument);
    Py_XDECREF(argument);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Windows: bytes of a file, mapped. No descriptor is kept, as Python's mmap does before 3.13. */

typedef struct {
    PyObject_HEAD
    char *base;
    Py_ssize_t size;
} window;

static PyTypeObject window_type;

static PyObject *window_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    int fd;
    Py_ssize_t at, size;
    if (!PyArg_ParseTuple(args, "inn", &fd, &at, &size))
        return NULL;
    void *base = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, at);
    if (base == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    window *self = (window *)type->tp_alloc(type, 0);
    if (self == NULL) {
        munmap(base, (size_t)size);
        return NULL;
    }
    self->base = base;
    self->size = size;
    return (PyObject *)self;
}

static void window_dealloc(window *self) {
    munmap(self->base, (size_t)self->size);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int window_buffer(PyObject *self, Py_buffer *view, int flags) {
    return PyBuffer_FillInfo(view, self, ((window *)self)->base, ((window *)self)->size, 0, flags);
}

static PyBufferProcs window_as_buffer = {.bf_getbuffer = window_buffer};

static PyTypeObject window_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "voirkit.trace._recorder.Window",
    .tp_basicsize = sizeof(window),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = window_new,
    .tp_dealloc = (destructor)window_dealloc,
    .tp_as_buffer = &window_as_buffer,
    .tp_doc = "Window(fd, at, size): bytes of a file, mapped; of memory if fd is -1.",
};

/* Writers. */

static void thread_ended(void *w) { /* without the GIL, and perhaps without Python */
    mine = &nobody;
    __atomic_store_n(&((writer *)w)->gone, 1, __ATOMIC_RELEASE);
}

static void child_began(void) { /* in a forked child, before anything of Python runs: the parent's windows are not to be written to */
    era++;
    mine = &nobody;
    pthread_setspecific(key, NULL);
    for (writer *w = writers; w != NULL; w = w->link) {
        w->next = w->limit = NULL;
        if (depth == 0) /* else the fork comes from a signal handler, in the middle of make_room */
            w->busy = 0;
        w->gone = 1;
    }
}

static writer *free_writer(void) {
    for (writer *w = writers; w != NULL; w = w->link)
        if (!w->busy && __atomic_exchange_n(&w->gone, 0, __ATOMIC_ACQ_REL)) {
            w->announced = 0;
            return w;
        }
    writer *w = calloc(1, sizeof *w);
    if (w != NULL) {
        w->link = writers;
        __atomic_store_n(&writers, w, __ATOMIC_RELEASE);
    }
    return w;
}

static inline void store(writer *w, int64_t start, int64_t duration, int64_t value, uint64_t args, uint64_t name) {
    record *r = (record *)w->next;
    w->next += sizeof *r;
    r->start = start;
    r->duration = duration;
    r->value = value;
    __atomic_store_n(&r->args_and_name, name << 32 | args, __ATOMIC_RELEASE);
}

/* Have this thread's writer ready: 1; 0: nothing can be recorded; -1: an exception of the program. After 1 there may still be no room, if a
 * recording ended meanwhile: try again. */
static int make_room(void) {
    writer *before = mine, *w = before;
    if (w->next < w->limit)
        return 1;
    if (depth >= DEEPEST)
        return 0;
    if (w == &nobody || w->busy) {
        w = free_writer();
        if (w == NULL)
            return 0;
    }
    unsigned now = era;
    int64_t tid = 0;
    int result = -1;
    PyObject *answer = NULL;
    w->busy = 1;
    depth++;
    if (!w->announced) {
        answer = ask(on_arrive, NULL);
        if (answer == NULL)
            goto out;
        result = 0;
        if (answer == Py_None)
            goto out;
        tid = PyLong_AsLongLong(answer);
        Py_DECREF(answer);
        answer = NULL;
    }
    if (now == era && w->next >= w->limit) {
        result = -1;
        answer = ask(on_grow, w->segment == NULL ? Py_None : w->segment);
        if (answer == NULL)
            goto out;
        result = 0;
        PyObject *segment, *map;
        Py_ssize_t at, size, first;
        if (answer == Py_None || !PyArg_ParseTuple(answer, "OO!nnn", &segment, &window_type, &map, &at, &size, &first)) {
            PyErr_Clear();
            goto out;
        }
        if (now == era) {
            PyObject *old_segment = w->segment, *old_window = w->window;
            w->segment = Py_NewRef(segment);
            w->window = Py_NewRef(map);
            w->base = ((window *)map)->base;
            w->next = w->base + first;
            w->limit = w->base + size;
            w->at = at;
            Py_XDECREF(old_window);
            Py_XDECREF(old_segment);
        }
    }
    if (now == era && !w->announced && w->next < w->limit) {
        store(w, clock_ns(), 0, tid, 0, THREAD);
        w->announced = 1;
        w->markers++;
    }
    result = 1;
out:
    Py_XDECREF(answer);
    w->busy = 0;
    depth--;
    if (mine != before && mine != &nobody) /* who interrupted had one of its own */
        __atomic_store_n(&mine->gone, 1, __ATOMIC_RELEASE);
    w->gone = 0;
    mine = w;
    pthread_setspecific(key, w);
    return result;
}

/* What cannot be stored at once. 0: it is recorded, or counted as dropped. -1: so it is, and a signal handler of the program raised. */
static int slow(int64_t start, int64_t duration, int64_t value, uint32_t args, uint32_t name) {
    PyObject *raised = NULL;
    int stored = 0;
    for (int i = 0; i < TRIES && name != 0 && mode == ON && !stored; i++) {
        unsigned now = era;
        int room = make_room();
        if (room > 0 && args && args <= inherited && tell(on_resolve, args) < 0)
            room = -1;
        if (room < 0) {
            Py_XDECREF(raised);
            raised = take_raised();
        }
        else if (room == 0)
            break;
        else if (now == era && mine->next < mine->limit) { /* else the line of its arguments may be in another recording */
            store(mine, start, duration, value, args, name);
            stored = 1;
        }
    }
    if (!stored && mode != OFF && tell(on_lose, name) < 0) {
        Py_XDECREF(raised);
        raised = take_raised();
    }
    if (raised == NULL)
        return 0;
    give_raised(raised);
    return -1;
}

static inline int put(int64_t start, int64_t duration, int64_t value, uint32_t args, uint32_t name) {
    writer *w = mine;
    if (__builtin_expect(w->next >= w->limit || name == 0 || (args != 0 && args <= inherited), 0))
        return slow(start, duration, value, args, name);
    store(w, start, duration, value, args, name);
    return 0;
}

static int as_int64(PyObject *object, int64_t *number) { /* what is too large for 64 bits is as large as they allow */
    int overflow;
    *number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow)
        *number = overflow > 0 ? INT64_MAX : INT64_MIN;
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static inline uint32_t as_id(int64_t number) {
    return number > 0 && number < UINT32_MAX ? (uint32_t)number : 0;
}

/* Up to five whole numbers, by place or by name. */
static int parse(PyObject *const *given, Py_ssize_t n, PyObject *kwnames, const char *const *names, int needed, int most, int64_t *out) {
    Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames), had = n;
    if (n > most)
        goto wrong;
    for (Py_ssize_t i = 0; i < n; i++)
        if (as_int64(given[i], &out[i]) < 0)
            return -1;
    for (Py_ssize_t k = 0; k < keywords; k++) {
        Py_ssize_t i = n;
        while (i < most && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, k), names[i]) != 0)
            i++;
        if (i == most)
            goto wrong;
        if (as_int64(given[n + k], &out[i]) < 0)
            return -1;
        had += i < needed;
    }
    if (had >= needed)
        return 0;
wrong:
    PyErr_SetString(PyExc_TypeError, "wrong arguments");
    return -1;
}

static const char *const names_of_span[] = {"name_id", "start_ns", "end_ns", "args", "value"};

static PyObject *recorder_span(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t n, PyObject *kwnames) {
    int64_t v[5] = {0};
    if (mode == OFF)
        Py_RETURN_NONE;
    if (parse(given, n, kwnames, names_of_span, 3, 5, v) < 0)
        return NULL;
    if (put(v[1], (int64_t)((uint64_t)v[2] - (uint64_t)v[1]), v[4], as_id(v[3]), as_id(v[0])) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* What span() does, into memory that nobody reads: to see what it costs. */
static PyObject *recorder_trial(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t n, PyObject *kwnames) {
    static record place;
    int64_t v[5] = {0};
    writer w = {.next = (char *)&place, .limit = (char *)(&place + 1)};
    if (parse(given, n, kwnames, names_of_span, 3, 5, v) < 0)
        return NULL;
    store(&w, v[1], (int64_t)((uint64_t)v[2] - (uint64_t)v[1]), v[4], as_id(v[3]), as_id(v[0]));
    Py_RETURN_NONE;
}

/* Span: `with span:` looks up `__exit__` before it calls `__enter__`; what it gets there, an entry, holds the time, so that the span holds
 * no state and may be entered again, and by other threads, before it is left. */

typedef struct {
    PyObject_HEAD
    uint32_t name_id, args;
    char enabled;
    uint64_t seen; /* the generation in which it was brought up to date */
} span;

static PyTypeObject span_type;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    int64_t start;
    span *span; /* NULL: found on the type, as contextlib.ExitStack does; the span is an argument then */
} entry;

static PyTypeObject entry_type;
static PyObject *nothing; /* what is called instead of an entry where nothing is to be recorded */

/* Have a span ask for its arguments, if any may be others now. -1: an exception of the program. */
static int refresh(span *self) {
    uint64_t now = generation;
    go_deeper(DEEPER);
    PyObject *answer = PyObject_CallMethodNoArgs((PyObject *)self, word_refresh);
    go_deeper(-DEEPER);
    if (answer == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        PyObject *exc = take_raised();
        answer = ask(on_failed, exc);
        Py_XDECREF(exc);
        if (answer == NULL)
            return -1;
    }
    Py_DECREF(answer);
    self->seen = now; /* not before: another thread would take the old for the new */
    return 0;
}

static int leave(span *self, int64_t start, int64_t end, int64_t value, uint32_t name) {
    PyObject *raised = NULL;
    if (mode == OFF)
        return 0;
    if (self->seen != generation && refresh(self) < 0)
        raised = take_raised();
    int failed = self->enabled ? put(start, end - start, value, self->args, name ? name : self->name_id) : 0;
    if (raised == NULL)
        return failed;
    if (failed < 0)
        Py_DECREF(raised);
    else
        give_raised(raised);
    return -1;
}

static PyObject *entry_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *Py_UNUSED(kwnames)) {
    int64_t end = clock_ns();
    entry *self = (entry *)object;
    span *of = self->span;
    if (of == NULL) {
        if (PyVectorcall_NARGS(nargsf) < 1 || !PyObject_TypeCheck(args[0], &span_type))
            Py_RETURN_NONE;
        of = (span *)args[0];
    }
    if (leave(of, self->start, end, 0, 0) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static void entry_dealloc(entry *self) {
    Py_XDECREF(self->span);
    PyObject_Free(self);
}

/* Not seen by the garbage collector: the only object that an entry holds is its span. */
static PyTypeObject entry_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "voirkit.trace._recorder.Entry",
    .tp_basicsize = sizeof(entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(entry, call),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_doc = "Ends a span that has begun.",
};

static PyObject *exit_get(PyObject *Py_UNUSED(self), PyObject *object, PyObject *Py_UNUSED(type)) {
    span *of = (span *)object;
    if (mode == OFF || (of != NULL && of->seen == generation && !of->enabled))
        return Py_NewRef(nothing);
    if (of != NULL && of->seen != generation) {
        if (refresh(of) < 0)
            return NULL;
        if (!of->enabled)
            return Py_NewRef(nothing);
    }
    entry *made = PyObject_New(entry, &entry_type);
    if (made == NULL)
        return NULL;
    made->call = entry_call;
    made->span = (span *)Py_XNewRef(of);
    made->start = clock_ns();
    return (PyObject *)made;
}

static PyTypeObject exit_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "voirkit.trace._recorder.Exit",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_descr_get = exit_get,
};

static int span_init(span *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name_id", NULL};
    PyObject *number;
    int64_t name_id;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Span", names, &number) || as_int64(number, &name_id) < 0)
        return -1;
    self->name_id = as_id(name_id);
    self->args = 0;
    self->enabled = 1;
    self->seen = 0;
    return 0;
}

static PyObject *span_enter(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    return Py_NewRef(self);
}

static PyObject *span_refresh(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    Py_RETURN_NONE;
}

static PyObject *span_is_on(span *self, PyObject *Py_UNUSED(ignored)) {
    if (mode != OFF && self->seen != generation && refresh(self) < 0)
        return NULL;
    return PyBool_FromLong(mode != OFF && self->enabled);
}

static PyObject *span_record(span *self, PyObject *const *given, Py_ssize_t n, PyObject *kwnames) {
    static const char *const names[] = {"start_ns", "end_ns", "value", "name_id"};
    int64_t v[4] = {0};
    if (mode == OFF)
        Py_RETURN_NONE;
    if (parse(given, n, kwnames, names, 2, 4, v) < 0 || leave(self, v[0], v[1], v[2], as_id(v[3])) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef span_methods[] = {
    {"__enter__", span_enter, METH_NOARGS, NULL},
    {"refresh", span_refresh, METH_NOARGS, "Bring args and enabled up to date."},
    {"is_on", (PyCFunction)(void (*)(void))span_is_on, METH_NOARGS, "Whether a span that begins now is recorded."},
    {"record", (PyCFunction)(void (*)(void))span_record, METH_FASTCALL | METH_KEYWORDS, "record(start_ns, end_ns, value=0, name_id=0)"},
    {NULL},
};

static PyMemberDef span_members[] = {
    {"name_id", T_UINT, offsetof(span, name_id), 0, NULL},
    {"args", T_UINT, offsetof(span, args), 0, NULL},
    {"enabled", T_BOOL, offsetof(span, enabled), 0, NULL},
    {NULL},
};

static PyTypeObject span_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "voirkit.trace._recorder.Span",
    .tp_basicsize = sizeof(span),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)span_init,
    .tp_methods = span_methods,
    .tp_members = span_members,
    .tp_doc = "Span(name_id): what is recorded each time that a `with` of it ends.",
};

/* For recorder.py and recording.py. */

static PyObject *recorder_install(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *f[5], **to[5] = {&on_arrive, &on_grow, &on_resolve, &on_lose, &on_failed};
    if (!PyArg_ParseTuple(args, "OOOOO", &f[0], &f[1], &f[2], &f[3], &f[4]))
        return NULL;
    for (int i = 0; i < 5; i++)
        Py_XSETREF(*to[i], Py_NewRef(f[i]));
    Py_RETURN_NONE;
}

static PyObject *recorder_switch(PyObject *Py_UNUSED(module), PyObject *number) {
    long wanted = PyLong_AsLong(number);
    if (wanted == -1 && PyErr_Occurred())
        return NULL;
    mode = on_arrive == NULL ? OFF : (int)wanted;
    Py_RETURN_NONE;
}

static PyObject *recorder_inherit(PyObject *Py_UNUSED(module), PyObject *number) {
    int64_t last;
    if (as_int64(number, &last) < 0)
        return NULL;
    if (as_id(last) >= highest) /* else it is of who is late */
        inherited = highest = as_id(last);
    Py_RETURN_NONE;
}

static PyObject *recorder_close(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    PyObject *ends = PyList_New(0);
    era++;
    inherited = UINT32_MAX;
    for (writer *w = writers; w != NULL && ends != NULL; w = w->link) {
        PyObject *segment = w->segment, *map = w->window;
        Py_ssize_t end = w->at + (w->next - w->base), markers = w->markers;
        w->segment = w->window = NULL;
        w->next = w->limit = w->base = NULL;
        w->at = w->markers = 0;
        w->announced = 0;
        if (segment != NULL) {
            PyObject *one = Py_BuildValue("OnnO", segment, end, markers, Py_True);
            if (one == NULL || PyList_Append(ends, one) < 0)
                Py_CLEAR(ends);
            Py_XDECREF(one);
        }
        Py_XDECREF(map);
        Py_XDECREF(segment);
    }
    return ends;
}

static PyObject *recorder_changed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    generation++;
    Py_RETURN_NONE;
}

static PyObject *recorder_now(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromLongLong(clock_ns());
}

/* For instruments written in C; who uses it looks at the version. */
static const struct {
    int version;
    int (*put)(int64_t start, int64_t duration, int64_t value, uint32_t args, uint32_t name); /* -1: a signal handler raised; it is recorded */
    const int *mode;
    const uint32_t *inherited;
} api = {1, put, &mode, &inherited};

static PyObject *recorder_nothing(PyObject *Py_UNUSED(module), PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(n)) {
    Py_RETURN_NONE;
}

#define FAST (PyCFunction)(void (*)(void))
static PyMethodDef methods[] = {
    {"span", FAST recorder_span, METH_FASTCALL | METH_KEYWORDS, "span(name_id, start_ns, end_ns, args=0, value=0)"},
    {"trial", FAST recorder_trial, METH_FASTCALL | METH_KEYWORDS, "What span() does, into memory that nobody reads."},
    {"changed", recorder_changed, METH_NOARGS, "Some span's arguments, or whether it is enabled, may be others now."},
    {"now", recorder_now, METH_NOARGS, "time.perf_counter_ns()"},
    {"install", recorder_install, METH_VARARGS, "install(arrive, grow, resolve, lose, failed)"},
    {"switch", recorder_switch, METH_O, "Record (1), do not (0), or count what would be recorded as dropped (2)."},
    {"inherit", recorder_inherit, METH_O, "Arguments up to this number may not be in the files yet; a smaller one than before is of who is late."},
    {"close", recorder_close, METH_NOARGS, "Take the windows away; (segment, where it ends, records that say whose the others are, True)."},
    {"_nothing", FAST recorder_nothing, METH_FASTCALL, NULL},
    {NULL},
};

static int execute(PyObject *module) {
    static int done;
    /* State is the process's: other interpreters use plain.py. */
    if (done || PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "one interpreter in a process can have it");
        return -1;
    }
    if (PyType_Ready(&entry_type) < 0 || PyType_Ready(&exit_type) < 0)
        return -1;
    PyObject *found = (PyObject *)PyObject_New(PyObject, &exit_type);
    span_type.tp_dict = PyDict_New();
    if (found == NULL || span_type.tp_dict == NULL || PyDict_SetItemString(span_type.tp_dict, "__exit__", found) < 0)
        return -1;
    Py_DECREF(found);
    if (PyType_Ready(&span_type) < 0) /* python 3.13's PyModule_AddType takes a type that has a dictionary for a ready one */
        return -1;
    word_refresh = PyUnicode_InternFromString("refresh");
    nothing = PyObject_GetAttrString(module, "_nothing");
    if (word_refresh == NULL || nothing == NULL || PyType_Ready(&span_type) < 0) /* 3.12 takes what has a tp_dict for ready */
        return -1;
    if (pthread_key_create(&key, thread_ended) != 0 || pthread_atfork(NULL, NULL, child_began) != 0) {
        PyErr_SetString(PyExc_ImportError, "threads cannot be watched");
        return -1;
    }
    done = 1;
    PyObject *capsule = PyCapsule_New((void *)&api, "voirkit.trace._recorder.api", NULL);
    if (PyModule_AddObjectRef(module, "api", capsule) < 0)
        return -1;
    Py_XDECREF(capsule);
    if (PyModule_AddStringConstant(module, "NAME", "c") < 0 || PyModule_AddIntConstant(module, "ENGINE", ENGINE) < 0 || PyModule_AddType(module, &span_type) < 0)
        return -1;
    return PyModule_AddType(module, &window_type);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "voirkit.trace._recorder",
    .m_doc = "The hot path of the trace plane.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__recorder(void) {
    return PyModuleDef_Init(&definition);
}
