/* From keys to numbers, and to key groups. keys.py and state/key_group_assignment.py define the
   results. */

#include "kernels.h"
#include <stdlib.h>

enum { NO_MEMORY = -1, TOO_MANY = -2, WRONG_OFFSETS = -3 };

/* --- KeyTable: numbers the different values of columns of one layout ---------------------------*/

typedef struct {
    uint64_t word;   /* the key itself if it has at most 8 bytes, else a hash of its bytes */
    uint32_t length; /* 0 for keys of fixed width up to 8 */
    int32_t number;  /* the key's number + 1; 0: no key is here */
} Entry;

typedef struct {
    PyObject_HEAD
    Py_ssize_t layout;
    uint64_t seed;
    Entry *entries;
    size_t mask; /* number of entries, a power of two, - 1 */
    int32_t count, null_number;
    uint8_t *bytes; /* of all keys of more than 8 bytes, one after another */
    size_t bytes_used, bytes_size;
    size_t *starts; /* of a key's bytes, by number; only if keys may have more than 8 bytes */
    bool is_busy;
} KeyTable;

#define FIRST_SIZE 256
#define FACTOR UINT64_C(0x9E3779B97F4A7C15)

/* Both halves of a product: each bit of *word* changes many bits. */
INLINE uint64_t mix(uint64_t word)
{
    __uint128_t product = (__uint128_t)word * FACTOR;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_of(uint64_t seed, const uint8_t *bytes, Py_ssize_t length) /* > 8 bytes */
{
    uint64_t hash = seed ^ (uint64_t)length, word;
    for (Py_ssize_t at = 0; at < length - 8; at += 8) {
        memcpy(&word, bytes + at, 8);
        hash = mix(hash ^ word) + FACTOR;
    }
    memcpy(&word, bytes + length - 8, 8);
    return mix(hash ^ word);
}

INLINE size_t place_of(const KeyTable *table, uint64_t word, uint32_t length)
{
    return (length > 8 ? word : mix(word ^ table->seed)) & table->mask;
}

static bool resize(KeyTable *table, size_t size)
{
    if (table->layout < 0 || table->layout > 8) {
        size_t *starts = realloc(table->starts, size * sizeof(size_t));
        if (starts == NULL)
            return false;
        table->starts = starts;
    }
    Entry *old = table->entries, *entries = calloc(size, sizeof(Entry));
    if (entries == NULL)
        return false;
    size_t old_size = old == NULL ? 0 : table->mask + 1;
    table->entries = entries, table->mask = size - 1;
    for (size_t at = 0; at < old_size; at++) {
        if (old[at].number == 0)
            continue;
        size_t place = place_of(table, old[at].word, old[at].length);
        while (entries[place].number != 0)
            place = (place + 1) & table->mask;
        entries[place] = old[at];
    }
    free(old);
    return true;
}

static int64_t new_number(KeyTable *table)
{
    if (table->count == INT32_MAX - 1)
        return TOO_MANY;
    if ((size_t)table->count + 1 > table->mask / 3 * 2 && !resize(table, 2 * (table->mask + 1)))
        return NO_MEMORY;
    return table->count++;
}

static int64_t add_key(KeyTable *table, uint64_t word, uint32_t length, const uint8_t *bytes)
{
    int64_t number = new_number(table);
    if (number < 0)
        return number;
    if (length > 8) {
        if (table->bytes_size - table->bytes_used < length) {
            size_t size = 2 * table->bytes_size + length;
            uint8_t *grown = realloc(table->bytes, size);
            if (grown == NULL)
                return NO_MEMORY;
            table->bytes = grown, table->bytes_size = size;
        }
        memcpy(table->bytes + table->bytes_used, bytes, length);
        table->starts[number] = table->bytes_used;
        table->bytes_used += length;
    }
    size_t place = place_of(table, word, length);
    while (table->entries[place].number != 0)
        place = (place + 1) & table->mask;
    table->entries[place] = (Entry){word, length, (int32_t)number + 1};
    return number;
}

INLINE int64_t number_of(KeyTable *table, uint64_t word, uint32_t length, const uint8_t *bytes)
{
    for (size_t place = place_of(table, word, length);; place = (place + 1) & table->mask) {
        const Entry *entry = &table->entries[place];
        if (entry->number == 0)
            return add_key(table, word, length, bytes);
        if (entry->word == word && entry->length == length
            && (length <= 8
                || memcmp(table->bytes + table->starts[entry->number - 1], bytes, length) == 0))
            return entry->number - 1;
    }
}

INLINE int64_t number_of_row(KeyTable *table, const Column *column, Py_ssize_t layout,
                             Py_ssize_t row)
{
    if (is_null(column, row)) {
        if (table->null_number < 0) {
            int64_t number = new_number(table);
            if (number < 0)
                return number;
            table->null_number = (int32_t)number;
        }
        return table->null_number;
    }
    if (layout == BITS)
        return number_of(table, bit_at(column->data, column->offset + row), 0, NULL);
    if (layout > 0 && layout <= 8) {
        uint64_t word = 0;
        memcpy(&word, column->data + (column->offset + row) * layout, layout);
        return number_of(table, word, 0, NULL);
    }
    Py_ssize_t begin = (column->offset + row) * layout, length = layout;
    if (layout < 0 && !bytes_of(column, layout, row, &begin, &length))
        return WRONG_OFFSETS;
    if (length > UINT32_MAX)
        return TOO_MANY;
    const uint8_t *bytes = column->data + begin;
    uint64_t word = 0;
    if (length > 8)
        word = hash_of(table->seed, bytes, length);
    else if (length > 0)
        word = load_up_to_8(bytes, length, column->data_length - begin);
    return number_of(table, word, (uint32_t)length, bytes);
}

/* Writes each row's number, and the rows in which a key occurs for the first time. Returns 0, or
   what is wrong. */
INLINE int64_t number_rows(KeyTable *table, const Column *column, Py_ssize_t layout,
                           int32_t *numbers, int32_t *first)
{
    int64_t known = table->count;
    for (Py_ssize_t row = 0; row < column->rows; row++) {
        int64_t number = number_of_row(table, column, layout, row);
        if (number < 0)
            return number;
        numbers[row] = (int32_t)number;
        if (number == known) {
            *first++ = (int32_t)row;
            known++;
        }
    }
    return 0;
}

static int64_t number_column(KeyTable *table, const Column *column, int32_t *numbers,
                             int32_t *first)
{
#define CASE(LAYOUT)                                                                               \
    case LAYOUT:                                                                                   \
        return number_rows(table, column, LAYOUT, numbers, first);
    switch (column->layout) { /* the compiler makes a loop for each constant */
        CASE(1)
        CASE(2)
        CASE(4)
        CASE(8)
        CASE(NARROW_OFFSETS)
        CASE(WIDE_OFFSETS)
    }
#undef CASE
    return number_rows(table, column, column->layout, numbers, first);
}

static PyObject *table_add(PyObject *self, PyObject *arguments)
{
    KeyTable *table = (KeyTable *)self;
    PyObject *parts, *objects[2];
    if (!PyArg_ParseTuple(arguments, "OOO", &parts, &objects[0], &objects[1]))
        return NULL;
    Column column;
    if (!take_column(parts, &column))
        return NULL;
    Array out[2];
    static const Py_ssize_t sizes[] = {4, 4};
    static const bool are_written[] = {true, true};
    if (!take_arrays(objects, out, sizes, are_written, 2)) {
        release_column(&column);
        return NULL;
    }
    int32_t before = table->count;
    int64_t wrong = 0;
    if (table->is_busy)
        PyErr_SetString(PyExc_RuntimeError, "two threads use one table of keys");
    else if (column.layout != table->layout || out[0].length != column.rows
             || out[1].length != column.rows)
        PyErr_SetString(PyExc_ValueError, "the layout or a length is not as it must be");
    else {
        table->is_busy = true;
        PyThreadState *saved = column.rows < FEW_ROWS ? NULL : PyEval_SaveThread();
        wrong = number_column(table, &column, out[0].data, out[1].data);
        if (saved != NULL)
            PyEval_RestoreThread(saved);
        table->is_busy = false;
        if (wrong == NO_MEMORY)
            PyErr_NoMemory();
        else if (wrong == TOO_MANY)
            PyErr_SetString(PyExc_OverflowError, "there are too many keys, or a key is too long");
        else if (wrong == WRONG_OFFSETS)
            PyErr_SetString(PyExc_ValueError, "offsets point beyond the data of the column");
    }
    release_arrays(out, 2);
    release_column(&column);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(table->count - before);
}

static PyObject *table_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    Py_ssize_t layout;
    unsigned long long seed;
    if (!PyArg_ParseTuple(arguments, "nK", &layout, &seed))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    KeyTable *table = (KeyTable *)allocate(type, 0); /* all bytes are zero */
    if (table == NULL)
        return NULL;
    table->layout = layout, table->seed = seed, table->null_number = -1;
    if (!resize(table, FIRST_SIZE)) {
        Py_DECREF(table);
        return PyErr_NoMemory();
    }
    return (PyObject *)table;
}

static void table_dealloc(PyObject *self)
{
    KeyTable *table = (KeyTable *)self;
    PyTypeObject *type = Py_TYPE(self);
    free(table->entries);
    free(table->bytes);
    free(table->starts);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef table_methods[] = {{"add", table_add, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

static PyType_Slot table_slots[] = {
    {Py_tp_new, table_new},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},
    {0, NULL},
};

static PyType_Spec table_spec = {.name = "flinkray.kernels._native.KeyTable",
                                 .basicsize = sizeof(KeyTable),
                                 .flags = Py_TPFLAGS_DEFAULT,
                                 .slots = table_slots};

/* --- numbers from a look-up array, and owners of key groups ------------------------------------*/

/* Writes table[key - base] for each key. Returns false if a key is outside of the table, or has a
   negative number. */
static bool look_up_keys(const int64_t *keys, Py_ssize_t rows, const Array *table, int64_t base,
                         int32_t *out)
{
    const int32_t *numbers = table->data;
    const uint64_t length = (uint64_t)table->length;
    int32_t all = 0;
    for (Py_ssize_t row = 0; row < rows; row++) {
        uint64_t place = (uint64_t)keys[row] - (uint64_t)base;
        if (place >= length)
            return false;
        all |= out[row] = numbers[place];
    }
    return all >= 0;
}

INLINE uint32_t murmur(uint32_t code)
{
    code *= 0xCC9E2D51;
    code = code << 15 | code >> 17;
    code *= 0x1B873593;
    code = code << 13 | code >> 19;
    code = (code * 5 + 0xE6546B64) ^ 4;
    code = (code ^ code >> 16) * 0x85EBCA6B;
    code = (code ^ code >> 13) * 0xC2B2AE35;
    code ^= code >> 16;
    uint32_t sign = 0 - (code >> 31); /* no branch: half of all hashes are negative */
    return ((code ^ sign) - sign) & 0x7FFFFFFF;
}

/* Java's String.hashCode, over UTF-16 units. Returns false if the bytes are not UTF-8. */
static bool hash_text(const uint8_t *at, Py_ssize_t length, uint32_t *hash)
{
    const uint8_t *end = at + length;
    uint32_t result = 0;
    while (at < end) {
        uint32_t code = *at++;
        if (code >= 0x80) {
            int more = code >= 0xF0 ? 3 : code >= 0xE0 ? 2 : 1;
            static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
            if (code < 0xC2 || code > 0xF4 || end - at < more)
                return false;
            code &= 0x3F >> more;
            for (int left = more; left > 0; left--, at++) {
                if ((*at & 0xC0) != 0x80)
                    return false;
                code = code << 6 | (*at & 0x3F);
            }
            if (code < least[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
                return false;
        }
        if (code >= 0x10000) {
            code -= 0x10000;
            result = 31 * result + (0xD800 | code >> 10);
            code = 0xDC00 | (code & 0x3FF);
        }
        result = 31 * result + code;
    }
    *hash = result;
    return true;
}

/* The owner of the key group of a key with a hash. *reciprocal*: of the number of key groups, for
   the remainder (Lemire, Kaser, Kurz, "Faster remainder by direct computation", 2019). */
INLINE int32_t owner_of(uint32_t hash, const Array *owners, uint64_t reciprocal)
{
    uint64_t fraction = reciprocal * murmur(hash);
    return ((int32_t *)owners->data)[(uint64_t)((__uint128_t)fraction * owners->length >> 64)];
}

static void own_integers(const int64_t *keys, Py_ssize_t rows, const Array *owners, int32_t *out)
{
    const uint64_t reciprocal = UINT64_MAX / (uint64_t)owners->length + 1;
    for (Py_ssize_t row = 0; row < rows; row++) {
        uint64_t key = (uint64_t)keys[row];
        out[row] = owner_of((uint32_t)(key ^ key >> 32), owners, reciprocal);
    }
}

/* Returns false if a text is not UTF-8 or not in the buffer. */
INLINE bool own_texts(const Column *column, Py_ssize_t layout, const Array *owners,
                      int32_t of_null, int32_t *out)
{
    const uint64_t reciprocal = UINT64_MAX / (uint64_t)owners->length + 1;
    for (Py_ssize_t row = 0; row < column->rows; row++) {
        Py_ssize_t begin, length;
        uint32_t hash;
        if (is_null(column, row)) {
            out[row] = of_null;
            continue;
        }
        if (!bytes_of(column, layout, row, &begin, &length)
            || !hash_text(column->data + begin, length, &hash))
            return false;
        out[row] = owner_of(hash, owners, reciprocal);
    }
    return true;
}

/* look_up: writes table[key - number] for each key. owners_of_integers: writes table[key group], and
   takes no notice of *number*. Returns whether there is a result for all keys. */
static PyObject *from_table(PyObject *arguments, bool is_look_up)
{
    PyObject *objects[3];
    long long number;
    if (!PyArg_ParseTuple(arguments, "OOLO", &objects[0], &objects[1], &number, &objects[2]))
        return NULL;
    Array arrays[3];
    static const Py_ssize_t sizes[] = {8, 4, 4};
    static const bool are_written[] = {false, false, true};
    if (!take_arrays(objects, arrays, sizes, are_written, 3))
        return NULL;
    Py_ssize_t rows = arrays[0].length, length = arrays[1].length;
    bool is_done = true, is_right = is_look_up ? number <= INT64_MAX - length
                                               : length > 0 && length <= INT32_MAX;
    if (is_right && arrays[2].length == rows) {
        PyThreadState *saved = rows < FEW_ROWS ? NULL : PyEval_SaveThread();
        if (is_look_up)
            is_done = look_up_keys(arrays[0].data, rows, &arrays[1], number, arrays[2].data);
        else
            own_integers(arrays[0].data, rows, &arrays[1], arrays[2].data);
        if (saved != NULL)
            PyEval_RestoreThread(saved);
    } else
        PyErr_SetString(PyExc_ValueError, "a number is out of range, or lengths differ");
    release_arrays(arrays, 3);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(is_done);
}

static PyObject *look_up(PyObject *module, PyObject *arguments)
{
    return from_table(arguments, true);
}

static PyObject *owners_of_integers(PyObject *module, PyObject *arguments)
{
    return from_table(arguments, false);
}

static PyObject *owners_of_texts(PyObject *module, PyObject *arguments)
{
    PyObject *parts, *objects[2];
    int of_null;
    if (!PyArg_ParseTuple(arguments, "OOiO", &parts, &objects[0], &of_null, &objects[1]))
        return NULL;
    Column column;
    if (!take_column(parts, &column))
        return NULL;
    Array arrays[2];
    static const Py_ssize_t sizes[] = {4, 4};
    static const bool are_written[] = {false, true};
    if (!take_arrays(objects, arrays, sizes, are_written, 2)) {
        release_column(&column);
        return NULL;
    }
    bool is_done = false;
    if (column.layout < 0 && arrays[0].length > 0 && arrays[0].length <= INT32_MAX
        && arrays[1].length == column.rows) {
        PyThreadState *saved = column.rows < FEW_ROWS ? NULL : PyEval_SaveThread();
        if (column.layout == NARROW_OFFSETS)
            is_done = own_texts(&column, NARROW_OFFSETS, &arrays[0], of_null, arrays[1].data);
        else
            is_done = own_texts(&column, WIDE_OFFSETS, &arrays[0], of_null, arrays[1].data);
        if (saved != NULL)
            PyEval_RestoreThread(saved);
    } else
        PyErr_SetString(PyExc_ValueError, "the keys are no texts, or lengths differ");
    release_arrays(arrays, 2);
    release_column(&column);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(is_done);
}

static PyMethodDef functions[] = {
    {"look_up", look_up, METH_VARARGS, NULL},
    {"owners_of_integers", owners_of_integers, METH_VARARGS, NULL},
    {"owners_of_texts", owners_of_texts, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_keys(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&table_spec);
    if (type == NULL)
        return -1;
    int result = PyModule_AddObjectRef(module, "KeyTable", type);
    Py_DECREF(type);
    return result < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
