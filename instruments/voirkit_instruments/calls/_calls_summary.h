/* Summaries of arguments and results as bytes, which record_values.py reads: who makes two calls alike gets the same bytes.
 *
 * Looks at no object but through what C knows of exact types, and keeps none alive. */

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

enum { KEY = 2048, AT_END = 512, OPERANDS = 8, ITEMS = 8, LEVELS = 2, TEXT = 40, SCALARS = 16, MANY_SETS = 64, TOO_MANY_SETS = 1024 };
enum { TENSOR = 1, TRACED = 2 }; /* of a type: read it; what has it is of torch.compile's own */
enum { ARGS, KWARGS, RETURNS };

typedef struct {
    PyTypeObject *type;
    PyObject *ref; /* NULL: lives for ever */
    uint32_t name; /* of a call of a module of this type */
    uint16_t number;
    uint8_t flags;
} known_type;

typedef struct {
    int64_t scalars[SCALARS]; /* as they were first */
    uint32_t name, sets;
    uint16_t varied, had;
    uint8_t kind, called;
} target;

typedef struct open_call {
    struct open_call *link;
    target *of;
    int64_t start, object, spent;
    uint32_t name;
    uint16_t used, limit;
    uint8_t operands, full, traced;
    struct { int64_t id; uint32_t at; } operand[OPERANDS];
    uint8_t key[KEY];
} open_call;

enum { TYPES = 1 << 13, WORDS = 1 << 12 };
static known_type types[TYPES]; /* by address */
static uint32_t type_count;
static struct { PyObject *word; uint16_t number; } words[WORDS];
static uint32_t word_count;
static PyObject *on_type, *on_word;

static void raise_later(void);

static inline size_t place_of(const void *p, size_t size) {
    uintptr_t n = (uintptr_t)p >> 4;
    return (n ^ n >> 11) & (size - 1);
}

static inline int is_same_type(known_type *k, PyTypeObject *type) {
    if (k->type != type)
        return 0;
    if (k->ref == NULL)
        return 1;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found;
    if (PyWeakref_GetRef(k->ref, &found) < 1)
        return 0;
    Py_DECREF(found);
    return found == (PyObject *)type;
#else
    return PyWeakref_GET_OBJECT(k->ref) == (PyObject *)type;
#endif
}

static uint16_t told(PyObject *to, PyObject *what, uint8_t *flags) { /* number and flags of a new type or word */
    PyObject *answer = PyObject_CallOneArg(to, what);
    long both = answer == NULL ? -1 : PyLong_AsLong(answer);
    Py_XDECREF(answer);
    if (both < 0) {
        raise_later();
        both = 0;
    }
    *flags = (uint8_t)(both >> 16);
    return (uint16_t)both;
}

static known_type *type_of(PyTypeObject *type) {
    static known_type other; /* beyond what is kept */
    size_t first = place_of(type, TYPES), i;
    known_type *k;
    for (i = 0; i < 16; i++) {
        k = &types[(first + i) & (TYPES - 1)];
        if (is_same_type(k, type))
            return k;
        if (k->type == NULL || k->type == type)
            break;
    }
    if (i == 16 || type_count >= TYPES / 2)
        return &other;
    known_type made = {.type = type};
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        made.ref = PyWeakref_NewRef((PyObject *)type, NULL);
        if (made.ref == NULL) {
            PyErr_Clear();
            return &other;
        }
    }
    made.number = told(on_type, (PyObject *)type, &made.flags);
    if (k->type != NULL && k->type != type) /* who interrupted had the place */
        return &other;
    type_count += k->type == NULL;
    Py_XDECREF(k->ref);
    *k = made;
    return k;
}

static uint16_t word_number(PyObject *word) {
    uint8_t none;
    size_t first = place_of(word, WORDS);
    for (size_t i = 0; i < WORDS; i++) {
        size_t at = (first + i) & (WORDS - 1);
        if (words[at].word == word)
            return words[at].number;
        if (words[at].word == NULL) {
            if (word_count >= WORDS / 2)
                return 0;
            uint16_t number = told(on_word, word, &none);
            if (words[at].word == NULL) {
                word_count++;
                words[at].word = Py_NewRef(word);
                words[at].number = number;
            }
            return number;
        }
    }
    return 0;
}

/* Bytes. */

static inline int room(open_call *o, size_t n) {
    if (o->used + n <= o->limit)
        return 1;
    o->full = 1;
    return 0;
}

static inline void put_bytes(open_call *o, const void *from, size_t n) {
    memcpy(o->key + o->used, from, n);
    o->used += (uint16_t)n;
}

static inline void put_tag(open_call *o, char tag) {
    if (room(o, 1))
        o->key[o->used++] = (uint8_t)tag;
}

static inline void put_number(open_call *o, char tag, const void *number, size_t n) {
    if (room(o, n + 1)) {
        o->key[o->used++] = (uint8_t)tag;
        put_bytes(o, number, n);
    }
}

/* A number or text at a place where others have been, of a function that is called with ever others. */
static inline int varies(open_call *o, uint32_t at, int64_t value) {
    target *t = o->of;
    unsigned place = ((at & 3) == KWARGS ? 8 + (at >> 2) : at >> 2) % SCALARS, bit = 1u << place;
    if (!(t->had & bit)) {
        t->had |= bit;
        t->scalars[place] = value;
    }
    else if (t->scalars[place] != value)
        t->varied |= bit;
    return t->sets > MANY_SETS && t->varied & bit;
}

static int is_short_identifier(const char *text, Py_ssize_t n) {
    if (n == 0 || n > TEXT || (text[0] >= '0' && text[0] <= '9'))
        return 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!Py_ISALNUM(text[i]) && text[i] != '_')
            return 0;
    return 1;
}

static void put_text(open_call *o, PyObject *value, uint32_t at) {
    Py_ssize_t n = PyUnicode_GET_LENGTH(value);
    if (PyUnicode_IS_COMPACT_ASCII(value) && is_short_identifier((const char *)PyUnicode_1BYTE_DATA(value), n)) {
        const char *text = (const char *)PyUnicode_1BYTE_DATA(value);
        int64_t start = 0;
        for (Py_ssize_t i = 0; i < n; i++)
            start = start * 31 + text[i];
        if (varies(o, at, start))
            put_tag(o, 'w');
        else if (room(o, (size_t)n + 2)) {
            put_tag(o, 's');
            o->key[o->used++] = (uint8_t)n;
            put_bytes(o, text, (size_t)n);
        }
        return;
    }
    int64_t length = n;
    if (varies(o, at, -n))
        put_tag(o, 'w');
    else
        put_number(o, 'S', &length, 8);
}

static void put_operand(open_call *o, PyObject *value, uint32_t at) {
    if (o->operands < OPERANDS) {
        o->operand[o->operands].id = (int64_t)(uintptr_t)value;
        o->operand[o->operands++].at = at;
    }
}

static void put_tensor(open_call *o, PyObject *value, known_type *k, uint32_t at) {
    seen_tensor t;
    put_operand(o, value, at);
    if (!read_tensor(value, &t)) {
        put_number(o, 'z', &k->number, 2);
        return;
    }
    uint8_t head[] = {(uint8_t)t.dtype, (uint8_t)t.device, (uint8_t)t.index, (uint8_t)t.grad, (uint8_t)t.ndim};
    int dims = o->of->sets > TOO_MANY_SETS ? 0 : t.ndim > 8 ? 8 : t.ndim;
    if (!room(o, 8 + 8 * (size_t)dims))
        return;
    o->key[o->used++] = dims == t.ndim || t.ndim > 8 ? 't' : 'y';
    put_bytes(o, &k->number, 2);
    put_bytes(o, head, 5);
    put_bytes(o, t.dims, 8 * (size_t)dims);
}

static void put_value(open_call *o, PyObject *value, uint32_t at, int level);

static uint32_t inside(uint32_t at, Py_ssize_t i) { /* where an item of what is at some place is */
    return at >> 16 ? at : at | (uint32_t)(i + 1) << 16;
}

static void put_many(open_call *o, char tag, known_type *k, PyObject *value, Py_ssize_t n, uint32_t at, int level) {
    int64_t size = n;
    if (o->of->sets > TOO_MANY_SETS || level >= LEVELS) {
        if (o->of->sets > TOO_MANY_SETS)
            size = -1;
        n = 0;
    }
    n = n > ITEMS ? ITEMS : n;
    if (!room(o, 12))
        return;
    o->key[o->used++] = (uint8_t)tag;
    put_bytes(o, &k->number, 2);
    put_bytes(o, &size, 8);
    size_t count_at = o->used++;
    uint8_t count = 0;
    if (tag == 'd') {
        PyObject *key, *item;
        Py_ssize_t next = 0;
        while (count < n && PyDict_Next(value, &next, &key, &item)) {
            if (!PyUnicode_CheckExact(key) || !PyUnicode_IS_COMPACT_ASCII(key))
                continue;
            const char *text = (const char *)PyUnicode_1BYTE_DATA(key);
            Py_ssize_t length = PyUnicode_GET_LENGTH(key);
            if (!is_short_identifier(text, length))
                continue;
            if (!room(o, (size_t)length + 10))
                break;
            o->key[o->used++] = (uint8_t)length;
            put_bytes(o, text, (size_t)length);
            Py_INCREF(item);
            put_value(o, item, inside(at, count), level + 1);
            Py_DECREF(item);
            count++;
        }
    }
    else
        for (Py_ssize_t i = 0; i < n && i < (tag == 'l' ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value)) && !o->full; i++, count++) {
            PyObject *item = tag == 'l' ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i);
            Py_XINCREF(item);
            put_value(o, item == NULL ? Py_None : item, inside(at, i), level + 1);
            Py_XDECREF(item);
        }
    o->key[count_at] = count;
}

static void put_value(open_call *o, PyObject *value, uint32_t at, int level) {
    PyTypeObject *type = Py_TYPE(value);
    if (value == Py_None || value == Py_True || value == Py_False) {
        put_tag(o, value == Py_None ? 'N' : value == Py_True ? 'T' : 'F');
        return;
    }
    if (type == &PyLong_Type) {
        int overflow;
        int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow || varies(o, at, number))
            put_tag(o, 'j');
        else
            put_number(o, 'i', &number, 8);
        return;
    }
    if (type == &PyFloat_Type) {
        double number = PyFloat_AS_DOUBLE(value);
        int64_t bits;
        memcpy(&bits, &number, 8);
        if (varies(o, at, bits))
            put_tag(o, 'g');
        else
            put_number(o, 'f', &number, 8);
        return;
    }
    if (type == &PyUnicode_Type) {
        put_text(o, value, at);
        return;
    }
    known_type *k = type_of(type);
    o->traced |= k->flags & TRACED;
    if (k->flags & TENSOR)
        put_tensor(o, value, k, at);
    else if (type->tp_flags & Py_TPFLAGS_TUPLE_SUBCLASS)
        put_many(o, 'u', k, value, PyTuple_GET_SIZE(value), at, level);
    else if (type->tp_flags & Py_TPFLAGS_LIST_SUBCLASS)
        put_many(o, 'l', k, value, PyList_GET_SIZE(value), at, level);
    else if (type->tp_flags & Py_TPFLAGS_DICT_SUBCLASS)
        put_many(o, 'd', k, value, PyDict_GET_SIZE(value), at, level);
    else
        put_number(o, 'o', &k->number, 2);
}
