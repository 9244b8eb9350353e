/* The hot path of the steps instrument: what runs before and after each function of torch that it stands around, without a frame of Python.
 *
 * The same as record_plain.py, which is what runs where this could not be built, and tells what each function is for. Everything runs under
 * the GIL. Nothing of the program's is kept alive: objects are known by their address and a weak reference. What fails here is told through
 * failed(); only what the program means for itself (KeyboardInterrupt, exceptions of its signal handlers below span()) comes out.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#ifdef Py_GIL_DISABLED
#error "This relies on the GIL; a free-threaded Python uses record_plain.py."
#endif

enum { IDLE = 0, IN_STEP = 1, IN_BACKWARD = 3, SUPPRESSED = 9 }; /* as in record_plain.py */
enum { PLACES = 32 };

static inline int64_t clock_ns(void) {
    struct timespec t;
#ifdef __APPLE__
    clock_gettime(CLOCK_UPTIME_RAW, &t); /* what perf_counter reads there */
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* What the functions of one recording share; also what says where a thread is. */

typedef struct {
    PyObject_HEAD
    PyObject *span, *failed, *device; /* device: None until a GPU is used */
    int64_t serial, own_ns, spans, asked, trained, called;
    uint64_t era; /* counts forget() */
    int at_first; /* where a thread is that was not seen yet */
} HotPath;

/* One recording at a time: a thread that meets another one begins anew. */
static _Thread_local struct {
    int64_t serial;
    int inside;
    int64_t stepped; /* the arguments of the last step, or 0 */
    int64_t items;   /* of the last batch; -1: not known */
    double loss;     /* that the walk through a graph which is about to begin was asked of, if it is known */
    int knows_loss;
} here;
static int64_t last_serial;
static PyObject *word_training, *word_shape, *word_begin, *word_end, *word_drop, *word_generation, *word_initialized, *word_collected;
static PyObject *word_device, *word_data_ptr, *word_nbytes, *zero;

static inline int is_inside(HotPath *hot) {
    return here.serial == hot->serial ? here.inside : hot->at_first;
}

static inline void be_inside(HotPath *hot, int where) {
    if (here.serial != hot->serial) {
        here.stepped = here.knows_loss = 0;
        here.items = -1;
    }
    here.serial = hot->serial;
    here.inside = where;
}

/* An exception that is set, handled: voirkit's own is told and gone (0), the program's stays (-1). */
static int trouble(HotPath *hot, const char *what) {
    PyObject *type, *value, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *told = PyObject_CallFunction(hot->failed, "sO", what, value == NULL ? Py_None : value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    if (told == NULL && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    Py_XDECREF(told);
    return 0;
}

static int tell_device(HotPath *hot, PyObject *word, PyObject *one, PyObject *two) {
    if (hot->device == Py_None)
        return 0;
    PyObject *told = PyObject_CallMethodObjArgs(hot->device, word, one, two, NULL);
    Py_XDECREF(told);
    return told == NULL ? trouble(hot, "a time on the device") : 0;
}

static int record(HotPath *hot, PyObject *name, PyObject *began, int64_t end, PyObject *args, PyObject *value) {
    PyObject *ended = PyLong_FromLongLong(end);
    if (ended == NULL)
        return -1;
    PyObject *words[] = {name, began, ended, args, value};
    PyObject *done = PyObject_Vectorcall(hot->span, words, 5, NULL);
    Py_DECREF(ended);
    Py_XDECREF(done);
    hot->spans++;
    return done == NULL ? -1 : 0;
}

static int hot_traverse(HotPath *self, visitproc visit, void *arg) {
    Py_VISIT(self->span);
    Py_VISIT(self->failed);
    Py_VISIT(self->device);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int hot_clear(HotPath *self) {
    Py_CLEAR(self->span);
    Py_CLEAR(self->failed);
    Py_CLEAR(self->device);
    return 0;
}

static void hot_dealloc(HotPath *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    hot_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *hot_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *span, *failed;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "OO", &span, &failed))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "no keywords");
    HotPath *self = (HotPath *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->span = Py_NewRef(span);
    self->failed = Py_NewRef(failed);
    self->device = Py_NewRef(Py_None);
    self->serial = ++last_serial;
    return (PyObject *)self;
}

static PyObject *hot_get_inside(HotPath *self, void *Py_UNUSED(closure)) {
    self->asked++;
    return PyLong_FromLong(is_inside(self));
}

static int hot_set_inside(HotPath *self, PyObject *value, void *Py_UNUSED(closure)) {
    long where = value == NULL ? -1 : PyLong_AsLong(value);
    if (where == -1) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "inside is a number");
        return -1;
    }
    be_inside(self, (int)where);
    return 0;
}

static PyObject *hot_get_stepped(HotPath *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(here.serial == self->serial ? here.stepped : 0);
}

static int hot_set_stepped(HotPath *self, PyObject *value, void *Py_UNUSED(closure)) {
    long long stepped = value == NULL ? 0 : PyLong_AsLongLong(value);
    if (stepped == -1 && PyErr_Occurred())
        return -1;
    if (here.serial == self->serial)
        here.stepped = stepped;
    return 0;
}

static PyObject *hot_get_items(HotPath *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(here.serial == self->serial ? here.items : -1);
}

static int hot_set_items(HotPath *self, PyObject *value, void *Py_UNUSED(closure)) {
    long long items = value == NULL ? -1 : PyLong_AsLongLong(value);
    if (items == -1 && PyErr_Occurred())
        return -1;
    if (here.serial == self->serial)
        here.items = items;
    return 0;
}

static PyObject *hot_get_loss(HotPath *self, void *Py_UNUSED(closure)) {
    if (here.serial != self->serial || !here.knows_loss)
        Py_RETURN_NONE;
    return PyFloat_FromDouble(here.loss);
}

static int hot_set_loss(HotPath *self, PyObject *value, void *Py_UNUSED(closure)) {
    be_inside(self, is_inside(self)); /* the first that happens in this thread may be this */
    here.knows_loss = value != NULL && PyFloat_CheckExact(value);
    if (here.knows_loss)
        here.loss = PyFloat_AS_DOUBLE(value);
    return 0;
}

static PyObject *hot_everywhere(HotPath *self, PyObject *where) {
    if (hot_set_inside(self, where, NULL) < 0)
        return NULL;
    self->at_first = here.inside;
    Py_RETURN_NONE;
}

static PyObject *hot_forget(HotPath *self, PyObject *Py_UNUSED(none)) {
    self->era++;
    Py_RETURN_NONE;
}

static PyObject *hot_deepcopy(PyObject *self, PyObject *Py_UNUSED(memo)) {
    return Py_NewRef(self); /* torch.compile copies the constants of code, of which it is one */
}

/* What one function around torch's knows. */

typedef struct {
    PyObject *thing; /* compared only */
    PyObject *ref, *name, *args;
    uint64_t era;
    int flags;
} known;

typedef struct {
    PyObject_HEAD
    HotPath *hot;
    PyObject *name, *describe, *ask, *other, *tensor;
    known table[PLACES];
    int64_t began, least; /* of a pause, in ns */
    int level;
} Part;

static PyTypeObject *part_type;

static int part_traverse(Part *self, visitproc visit, void *arg) {
    Py_VISIT(self->hot);
    Py_VISIT(self->name);
    Py_VISIT(self->describe);
    Py_VISIT(self->ask);
    Py_VISIT(self->other);
    Py_VISIT(self->tensor);
    for (int i = 0; i < PLACES; i++)
        Py_VISIT(self->table[i].ref);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int part_clear(Part *self) {
    Py_CLEAR(self->hot);
    Py_CLEAR(self->name);
    Py_CLEAR(self->describe);
    Py_CLEAR(self->ask);
    Py_CLEAR(self->other);
    Py_CLEAR(self->tensor);
    for (int i = 0; i < PLACES; i++) {
        self->table[i].thing = NULL;
        Py_CLEAR(self->table[i].ref);
        Py_CLEAR(self->table[i].name);
        Py_CLEAR(self->table[i].args);
    }
    return 0;
}

static void part_dealloc(Part *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    part_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static inline int refers_to(PyObject *ref, PyObject *thing) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found;
    if (PyWeakref_GetRef(ref, &found) < 1)
        return 0;
    Py_DECREF(found);
    return found == thing;
#else
    return PyWeakref_GET_OBJECT(ref) == thing;
#endif
}

/* What describe() says of a thing, (name, arguments), asked once as long as it is there; new references. -1: an exception is set. */
static int look_up(Part *part, PyObject *thing, int flags, PyObject *const *said, Py_ssize_t n, PyObject **name, PyObject **args) {
    known *at = &part->table[(((uintptr_t)thing >> 4) ^ ((uintptr_t)thing >> 9) ^ (uintptr_t)(flags * 11)) % PLACES];
    if (at->thing != thing || at->flags != flags || at->era != part->hot->era || !refers_to(at->ref, thing)) {
        PyObject *answer = PyObject_Vectorcall(part->describe, said, n, NULL), *ref;
        if (answer == NULL)
            return -1;
        if (!PyTuple_Check(answer) || PyTuple_GET_SIZE(answer) != 2 || (ref = PyWeakref_NewRef(thing, NULL)) == NULL) {
            Py_DECREF(answer);
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "not described");
            return -1;
        }
        at->thing = thing;
        at->flags = flags;
        at->era = part->hot->era;
        Py_XSETREF(at->ref, ref);
        Py_XSETREF(at->name, Py_NewRef(PyTuple_GET_ITEM(answer, 0)));
        Py_XSETREF(at->args, Py_NewRef(PyTuple_GET_ITEM(answer, 1)));
        Py_DECREF(answer);
    }
    *name = Py_NewRef(at->name); /* who interrupts may put another thing there */
    *args = Py_NewRef(at->args);
    return 0;
}

/* Enter. */

static PyObject *enter(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(n)) {
    int64_t asked = clock_ns();
    Part *part = (Part *)self;
    HotPath *hot = part->hot;
    if (part->level == IN_STEP && is_inside(hot) == IN_STEP)
        return Py_NewRef(zero); /* the step of the class above */
    be_inside(hot, part->level);
    if (part->level != SUPPRESSED && tell_device(hot, word_begin, NULL, NULL) < 0)
        return NULL;
    int64_t began = clock_ns();
    hot->own_ns += began - asked;
    return PyLong_FromLongLong(began);
}

/* Leave: the beginning of each is the same. 1: to be recorded; 0: not; -1: an exception. */
static int left(HotPath *hot, PyObject *const *args, Py_ssize_t n, Py_ssize_t needed) {
    if (n < needed) {
        PyErr_SetString(PyExc_TypeError, "too few arguments");
        return -1;
    }
    long was = PyLong_AsLong(args[1]);
    if (was == -1 && PyErr_Occurred())
        return -1;
    be_inside(hot, (int)was);
    return PyObject_IsTrue(args[0]);
}

static PyObject *done(HotPath *hot, int64_t end, int result) {
    hot->own_ns += clock_ns() - end;
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *leave(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t end = clock_ns();
    Part *part = (Part *)self;
    int result = left(part->hot, args, n, 2);
    if (result > 0) {
        result = record(part->hot, part->name, args[0], end, zero, zero);
        if (part->level != SUPPRESSED && result == 0)
            result = tell_device(part->hot, word_end, part->name, zero);
    }
    return done(part->hot, end, result);
}

/* After a walk through a graph: with the loss as the record's own number, under another name, if it is known. */
static PyObject *leave_backward(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t end = clock_ns(), bits = 0;
    Part *part = (Part *)self;
    int result = left(part->hot, args, n, 2);
    int knows_loss = here.knows_loss;
    if (knows_loss)
        memcpy(&bits, &here.loss, sizeof bits);
    here.knows_loss = 0;
    if (result > 0) {
        PyObject *value = PyLong_FromLongLong(bits);
        part->hot->trained++;
        result = value == NULL ? -1 : record(part->hot, knows_loss ? part->other : part->name, args[0], end, zero, value);
        Py_XDECREF(value);
        if (result == 0)
            result = tell_device(part->hot, word_end, part->name, zero);
    }
    return done(part->hot, end, result);
}

static int truth(PyObject *answer) {
    int found = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return found;
}

static PyObject *leave_call(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t end = clock_ns();
    Part *part = (Part *)self;
    HotPath *hot = part->hot;
    int result = left(hot, args, n, 3);
    if (result <= 0)
        return done(hot, end, result);
    if (is_inside(hot) == IDLE) { /* in a thread of the autograd engine: a checkpoint's recomputation */
        PyObject *task = PyObject_CallNoArgs(part->other);
        long number = task == NULL ? -1 : PyLong_AsLong(task);
        Py_XDECREF(task);
        if (number == -1 && PyErr_Occurred())
            return done(hot, end, trouble(hot, "a module call"));
        if (number != -1)
            return done(hot, end, tell_device(hot, word_drop, NULL, NULL));
    }
    PyObject *kind = (PyObject *)Py_TYPE(args[2]), *name, *said;
    int training = truth(PyObject_GetAttr(args[2], word_training));
    int grad = training < 0 ? -1 : truth(PyObject_CallNoArgs(part->ask));
    if (grad < 0)
        return done(hot, end, trouble(hot, "a module call"));
    PyObject *words[] = {args[2], training ? Py_True : Py_False, grad ? Py_True : Py_False};
    if (look_up(part, kind, training * 2 + grad, words, 3, &name, &said) < 0)
        return done(hot, end, trouble(hot, "a module call"));
    hot->called++;
    result = record(hot, name, args[0], end, said, zero);
    if (result == 0)
        result = tell_device(hot, word_end, name, said);
    Py_DECREF(name);
    Py_DECREF(said);
    return done(hot, end, result);
}

static PyObject *leave_step(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t end = clock_ns();
    Part *part = (Part *)self;
    HotPath *hot = part->hot;
    int result = left(hot, args, n, 3);
    if (result <= 0)
        return done(hot, end, result);
    PyObject *optimizer = args[2], *name, *said;
    int uses; /* whether the device is used */
    if (PyTuple_CheckExact(optimizer) && PyTuple_GET_SIZE(optimizer)) /* all arguments, of a decorator's function */
        optimizer = PyTuple_GET_ITEM(optimizer, 0);
    if (look_up(part, optimizer, 0, &optimizer, 1, &name, &said) < 0)
        return done(hot, end, trouble(hot, "an optimizer's step"));
    hot->trained++;
    here.stepped = PyLong_Check(said) ? PyLong_AsLongLong(said) : 0; /* left() has said that this thread is of this recording */
    result = record(hot, name, args[0], end, said, zero);
    if (result == 0 && hot->device != Py_None)
        result = tell_device(hot, word_end, name, said);
    else if (result == 0 && (uses = part->other == Py_None ? 1 : truth(PyObject_GetAttr(part->other, word_initialized))) != 0) {
        PyObject *looked = uses < 0 ? NULL : PyObject_CallNoArgs(part->ask);
        result = looked == NULL ? trouble(hot, "an optimizer's step") : 0;
        Py_XDECREF(looked);
    }
    Py_DECREF(name);
    Py_DECREF(said);
    return done(hot, end, result);
}

/* Items of the most usual batches, tensors of torch's own type; -1: it is another, or an exception is set. */
static Py_ssize_t items_of_tensor(Part *part, PyObject *batch) {
    PyObject *first = batch;
    if ((PyList_CheckExact(batch) || PyTuple_CheckExact(batch)) && PySequence_Fast_GET_SIZE(batch))
        first = PySequence_Fast_GET_ITEM(batch, 0);
    if ((PyObject *)Py_TYPE(first) != part->tensor)
        return -1;
    int modes = truth(PyObject_CallNoArgs(part->ask)); /* of the program, that see each look at a tensor */
    if (modes != 0)
        return -1;
    first = Py_NewRef(first);
    PyObject *shape = PyObject_GetAttr(first, word_shape);
    Py_DECREF(first);
    if (shape == NULL) { /* a nested tensor has none */
        if (PyErr_ExceptionMatches(PyExc_Exception))
            PyErr_Clear();
        return -1;
    }
    Py_ssize_t found = PyTuple_Check(shape) && PyTuple_GET_SIZE(shape) ? PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, 0)) : -1;
    Py_DECREF(shape);
    return found;
}

static PyObject *leave_fetch(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t end = clock_ns();
    Part *part = (Part *)self;
    HotPath *hot = part->hot;
    int result = left(hot, args, n, 4);
    if (result <= 0)
        return done(hot, end, result);
    Py_ssize_t items = items_of_tensor(part, args[3]);
    here.items = items; /* left() has said that this thread is of this recording */
    if (items < 0) {    /* no batch, or another kind of one: who is asked sets the items */
        if (PyErr_Occurred() && trouble(hot, "a batch") < 0)
            return done(hot, end, -1);
        PyObject *ended = PyLong_FromLongLong(end);
        PyObject *words[] = {args[0], ended, args[2], args[3]};
        PyObject *told = ended == NULL ? NULL : PyObject_Vectorcall(part->other, words, 4, NULL);
        hot->spans++;
        Py_XDECREF(ended);
        Py_XDECREF(told);
        return done(hot, end, told == NULL ? -1 : 0);
    }
    PyObject *name, *said, *number;
    if (look_up(part, args[2], 0, &args[2], 1, &name, &said) < 0)
        return done(hot, end, trouble(hot, "a batch"));
    number = PyLong_FromSsize_t(items);
    result = number == NULL ? -1 : record(hot, name, args[0], end, said, number);
    Py_XDECREF(number);
    Py_DECREF(name);
    Py_DECREF(said);
    return done(hot, end, result);
}

/* A digest of the indices of a batch, as digest_indices() in record_plain.py: a list of whole numbers of 64 bits, or one. 0: it is another. */
static int digest_indices(PyObject *indices, uint64_t *digest) {
    uint64_t found = 0xcbf29ce484222325u;
    Py_ssize_t n = PyList_CheckExact(indices) ? PyList_GET_SIZE(indices) : 1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *index = PyList_CheckExact(indices) ? PyList_GET_ITEM(indices, i) : indices;
        int overflows;
        if (!PyLong_CheckExact(index))
            return 0;
        long long number = PyLong_AsLongLongAndOverflow(index, &overflows);
        if (overflows)
            return 0;
        found = (found ^ (uint64_t)number) * 0x9e3779b97f4a7c15u;
        found ^= found >> 32;
    }
    *digest = found;
    return 1;
}

/* After the sampler of a loader has said which items the next batch has: a record at the end of that, within the one of the request. */
static PyObject *leave_indices(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t end = clock_ns();
    Part *part = (Part *)self;
    HotPath *hot = part->hot;
    int result = left(hot, args, n, 3);
    if (result <= 0)
        return done(hot, end, result);
    uint64_t digest;
    if (!digest_indices(args[2], &digest)) { /* no indices, or of another kind */
        PyObject *told = PyObject_CallOneArg(part->other, args[2]);
        Py_XDECREF(told);
        return done(hot, end, told == NULL ? -1 : 0);
    }
    PyObject *value = PyLong_FromLongLong((int64_t)digest), *at = PyLong_FromLongLong(end);
    result = value == NULL || at == NULL ? -1 : record(hot, part->name, at, end, zero, value);
    Py_XDECREF(value);
    Py_XDECREF(at);
    return done(hot, end, result);
}

/* A callback of gc's: the pause, if it is long enough. Collections do not overlap, whatever threads there are. */
static PyObject *collection(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t at = clock_ns();
    Part *part = (Part *)self;
    HotPath *hot = part->hot;
    if (n < 2 || !PyUnicode_Check(args[0]) || PyUnicode_CompareWithASCIIString(args[0], "stop") != 0) {
        part->began = at;
        return done(hot, clock_ns(), 0);
    }
    int64_t began = part->began;
    part->began = 0;
    if (!began || at - began < part->least || hot->at_first == SUPPRESSED || !PyDict_Check(args[1]))
        return done(hot, at, 0);
    PyObject *generation = PyDict_GetItemWithError(args[1], word_generation);
    PyObject *collected = PyDict_GetItemWithError(args[1], word_collected);
    PyObject *said = generation == NULL || collected == NULL ? NULL : PyObject_CallOneArg(part->describe, generation);
    if (said == NULL)
        return done(hot, at, PyErr_Occurred() ? trouble(hot, "a garbage collection") : 0);
    PyObject *number = PyLong_FromLongLong(began);
    int result = number == NULL ? -1 : record(hot, part->name, number, at, said, collected);
    Py_XDECREF(number);
    Py_DECREF(said);
    return done(hot, at, result);
}

/* The functions: built in ones, whose copies are themselves, each with its part for self. */

#define FAST (PyCFunction)(void (*)(void))
static PyMethodDef made[] = {
    {"enter", FAST enter, METH_FASTCALL, NULL},
    {"leave", FAST leave, METH_FASTCALL, NULL},
    {"leave_call", FAST leave_call, METH_FASTCALL, NULL},
    {"leave_step", FAST leave_step, METH_FASTCALL, NULL},
    {"leave_fetch", FAST leave_fetch, METH_FASTCALL, NULL},
    {"collection", FAST collection, METH_FASTCALL, NULL},
    {"leave_backward", FAST leave_backward, METH_FASTCALL, NULL},
    {"leave_indices", FAST leave_indices, METH_FASTCALL, NULL},
};

static PyObject *function(HotPath *hot, int which, int level, PyObject *name, PyObject *describe, PyObject *ask, PyObject *other, PyObject *tensor) {
    Part *part = (Part *)part_type->tp_alloc(part_type, 0);
    if (part == NULL)
        return NULL;
    part->hot = (HotPath *)Py_NewRef((PyObject *)hot);
    part->level = level;
    part->name = Py_XNewRef(name);
    part->describe = Py_XNewRef(describe);
    part->ask = Py_XNewRef(ask);
    part->other = Py_XNewRef(other);
    part->tensor = Py_XNewRef(tensor);
    PyObject *result = PyCFunction_New(&made[which], (PyObject *)part);
    Py_DECREF(part);
    return result;
}

static PyObject *hot_enter(HotPath *self, PyObject *args) {
    int level;
    return PyArg_ParseTuple(args, "i", &level) ? function(self, 0, level, NULL, NULL, NULL, NULL, NULL) : NULL;
}

static PyObject *hot_leave(HotPath *self, PyObject *args) {
    PyObject *name;
    int level;
    return PyArg_ParseTuple(args, "Oi", &name, &level) ? function(self, 1, level, name, NULL, NULL, NULL, NULL) : NULL;
}

static PyObject *hot_leave_backward(HotPath *self, PyObject *args) {
    PyObject *name, *with_loss;
    return PyArg_ParseTuple(args, "OO", &name, &with_loss) ? function(self, 6, IN_BACKWARD, name, NULL, NULL, with_loss, NULL) : NULL;
}

static PyObject *hot_leave_indices(HotPath *self, PyObject *args) {
    PyObject *name, *other;
    return PyArg_ParseTuple(args, "OO", &name, &other) ? function(self, 7, SUPPRESSED, name, NULL, NULL, other, NULL) : NULL;
}

static PyObject *hot_leave_call(HotPath *self, PyObject *args) {
    PyObject *describe, *grad, *task;
    return PyArg_ParseTuple(args, "OOO", &describe, &grad, &task) ? function(self, 2, 0, NULL, describe, grad, task, NULL) : NULL;
}

static PyObject *hot_leave_step(HotPath *self, PyObject *args) {
    PyObject *describe, *look, *cuda = Py_None;
    return PyArg_ParseTuple(args, "OO|O", &describe, &look, &cuda) ? function(self, 3, 0, NULL, describe, look, cuda, NULL) : NULL;
}

static PyObject *hot_leave_fetch(HotPath *self, PyObject *args) {
    PyObject *describe, *other, *tensor, *modes;
    return PyArg_ParseTuple(args, "OOOO", &describe, &other, &tensor, &modes) ? function(self, 4, 0, NULL, describe, modes, other, tensor) : NULL;
}

static PyObject *hot_collection(HotPath *self, PyObject *args) {
    PyObject *name, *describe;
    long long least;
    if (!PyArg_ParseTuple(args, "OOL", &name, &describe, &least))
        return NULL;
    PyObject *result = function(self, 5, SUPPRESSED, name, describe, NULL, NULL, NULL);
    if (result != NULL)
        ((Part *)PyCFunction_GET_SELF(result))->least = least;
    return result;
}

#include "_steps_watched.h"

static PyMethodDef hot_methods[] = {
    {"enter", (PyCFunction)hot_enter, METH_VARARGS, "enter(level)"},
    {"leave", (PyCFunction)hot_leave, METH_VARARGS, "leave(name, level)"},
    {"leave_backward", (PyCFunction)hot_leave_backward, METH_VARARGS, "leave_backward(name, with_loss)"},
    {"leave_indices", (PyCFunction)hot_leave_indices, METH_VARARGS, "leave_indices(name, other)"},
    {"leave_call", (PyCFunction)hot_leave_call, METH_VARARGS, "leave_call(describe, grad_enabled, graph_task)"},
    {"leave_step", (PyCFunction)hot_leave_step, METH_VARARGS, "leave_step(describe, look, cuda)"},
    {"leave_fetch", (PyCFunction)hot_leave_fetch, METH_VARARGS, "leave_fetch(describe, other, tensor, modes)"},
    {"collection", (PyCFunction)hot_collection, METH_VARARGS, "collection(name, describe, least_ns)"},
    {"watch_copies", (PyCFunction)hot_watch_copies, METH_VARARGS, "watch_copies(method, leave, name, way, tensor, modes)"},
    {"everywhere", (PyCFunction)hot_everywhere, METH_O, "everywhere(inside): this thread is there, and those that come"},
    {"forget", (PyCFunction)hot_forget, METH_NOARGS, "forget(): describe all things again"},
    {"__deepcopy__", hot_deepcopy, METH_O, NULL},
    {NULL},
};

static PyMemberDef hot_members[] = {
    {"device", T_OBJECT, offsetof(HotPath, device), 0, NULL},
    {"own_ns", T_LONGLONG, offsetof(HotPath, own_ns), 0, NULL},
    {"spans", T_LONGLONG, offsetof(HotPath, spans), 0, NULL},
    {"asked", T_LONGLONG, offsetof(HotPath, asked), 0, NULL},
    {"trained", T_LONGLONG, offsetof(HotPath, trained), 0, NULL},
    {"called", T_LONGLONG, offsetof(HotPath, called), 0, NULL},
    {NULL},
};

static PyObject *hot_here(PyObject *self, void *Py_UNUSED(closure)) {
    return Py_NewRef(self);
}

static PyGetSetDef hot_getset[] = {
    {"inside", (getter)hot_get_inside, (setter)hot_set_inside, NULL, NULL},
    {"stepped", (getter)hot_get_stepped, (setter)hot_set_stepped, NULL, NULL},
    {"items", (getter)hot_get_items, (setter)hot_set_items, NULL, NULL},
    {"loss", (getter)hot_get_loss, (setter)hot_set_loss, NULL, NULL}, {"here", (getter)hot_here, NULL, NULL, NULL}, {NULL}};

static PyType_Slot hot_slots[] = {
    {Py_tp_new, hot_new}, {Py_tp_traverse, hot_traverse}, {Py_tp_clear, hot_clear}, {Py_tp_dealloc, hot_dealloc},
    {Py_tp_methods, hot_methods}, {Py_tp_members, hot_members}, {Py_tp_getset, hot_getset}, {0, NULL}};
static PyType_Spec hot_spec = {"voirkit_instruments.steps._steps.HotPath", sizeof(HotPath), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, hot_slots};

static PyType_Slot part_slots[] = {
    {Py_tp_traverse, part_traverse}, {Py_tp_clear, part_clear}, {Py_tp_dealloc, part_dealloc}, {0, NULL}};
static PyType_Spec part_spec = {"voirkit_instruments.steps._steps.Part", sizeof(Part), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, part_slots};

static int execute(PyObject *module) {
    static int ready;
    if (ready || PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "one interpreter in a process can have it");
        return -1;
    }
    PyObject *hot_type = PyType_FromSpec(&hot_spec);
    part_type = (PyTypeObject *)PyType_FromSpec(&part_spec);
    watched_type = (PyTypeObject *)PyType_FromSpec(&watched_spec);
    bound_type = (PyTypeObject *)PyType_FromSpec(&bound_spec);
    word_training = PyUnicode_InternFromString("training");
    word_shape = PyUnicode_InternFromString("shape");
    word_begin = PyUnicode_InternFromString("begin");
    word_end = PyUnicode_InternFromString("end");
    word_drop = PyUnicode_InternFromString("drop");
    word_initialized = PyUnicode_InternFromString("_initialized");
    word_generation = PyUnicode_InternFromString("generation");
    word_collected = PyUnicode_InternFromString("collected");
    word_device = PyUnicode_InternFromString("device");
    word_data_ptr = PyUnicode_InternFromString("data_ptr");
    word_nbytes = PyUnicode_InternFromString("nbytes");
    zero = PyLong_FromLong(0);
    if (hot_type == NULL || part_type == NULL || watched_type == NULL || bound_type == NULL || word_training == NULL || word_shape == NULL
        || word_begin == NULL || word_end == NULL || word_drop == NULL || word_generation == NULL || word_initialized == NULL || word_collected == NULL
        || word_device == NULL || word_data_ptr == NULL || word_nbytes == NULL || zero == NULL)
        return -1;
    ready = 1;
    return PyModule_AddObject(module, "HotPath", hot_type);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "voirkit_instruments.steps._steps", .m_doc = "The hot path of the steps instrument.", .m_slots = slots};

PyMODINIT_FUNC PyInit__steps(void) {
    return PyModuleDef_Init(&definition);
}
