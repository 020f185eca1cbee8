/* Divides the rows of a batch between channels. dividing.py defines the results. */

#include "kernels.h"

/* --- the order of the rows ---------------------------------------------------------------------*/

#define FEW_CHANNELS 4

/* Writes the rows of the first channel, the second and so on; the rows of each channel keep their
   order. bounds[channel] becomes the begin of a channel, and the last bound is the number of rows.
   Returns false if a row has no such channel. */
static bool order_rows(const int32_t *chosen, Py_ssize_t rows, Py_ssize_t channels, int32_t *order,
                       int64_t *bounds)
{
    memset(bounds, 0, (size_t)(channels + 1) * sizeof(int64_t));
    if (channels <= FEW_CHANNELS) { /* each looks at all rows, without a branch to predict */
        for (Py_ssize_t channel = 0; channel < channels; channel++) {
            int64_t end = bounds[channel], place = end;
            for (Py_ssize_t row = 0; row < rows; row++)
                end += chosen[row] == (int32_t)channel;
            bounds[channel + 1] = end;
            for (Py_ssize_t row = 0; place < end; row++) {
                order[place] = (int32_t)row;
                place += chosen[row] == (int32_t)channel;
            }
        }
        return bounds[channels] == rows;
    }
    for (Py_ssize_t row = 0; row < rows; row++) {
        if (chosen[row] < 0 || chosen[row] >= channels)
            return false;
        bounds[chosen[row] + 1]++;
    }
    for (Py_ssize_t channel = 1; channel < channels; channel++)
        bounds[channel + 1] += bounds[channel];
    for (Py_ssize_t row = 0; row < rows; row++) /* bounds[channel]: where its next row goes */
        order[bounds[chosen[row]]++] = (int32_t)row;
    memmove(bounds + 1, bounds, (size_t)channels * sizeof(int64_t));
    bounds[0] = 0;
    return true;
}

/* --- some rows of a column ---------------------------------------------------------------------*/

typedef struct {
    const int32_t *order;
    Py_ssize_t rows;
} Rows;

INLINE void take_values_of_width(const Column *column, size_t width, Rows rows, uint8_t *out)
{
    const uint8_t *values = column->data + (size_t)column->offset * width;
    for (Py_ssize_t place = 0; place < rows.rows; place++)
        memcpy(out + (size_t)place * width, values + (size_t)rows.order[place] * width, width);
}

static void take_values(const Column *column, Rows rows, uint8_t *out)
{
#define CASE(WIDTH)                                                                                \
    case WIDTH:                                                                                    \
        take_values_of_width(column, WIDTH, rows, out);                                            \
        break;
    switch (column->layout) { /* the compiler makes a loop for each constant */
        CASE(1)
        CASE(2)
        CASE(4)
        CASE(8)
        CASE(16)
    default:
        take_values_of_width(column, (size_t)column->layout, rows, out);
    }
#undef CASE
}

/* Returns how many of the bits are set. */
static Py_ssize_t take_bits(const uint8_t *bits, Py_ssize_t offset, Rows rows, uint8_t *out)
{
    Py_ssize_t set = 0;
    memset(out, 0, (size_t)(rows.rows + 7) / 8);
    for (Py_ssize_t place = 0; place < rows.rows; place++) {
        bool bit = bit_at(bits, offset + rows.order[place]);
        out[place >> 3] |= (uint8_t)(bit << (place & 7));
        set += bit;
    }
    return set;
}

/* Writes the offsets of the rows' bytes among only these rows' bytes; nulls have no bytes. Returns
   the number of bytes, or -1 if the offsets of the column are wrong. */
INLINE int64_t take_offsets(const Column *column, Py_ssize_t layout, Rows rows, uint8_t *out)
{
    int64_t total = 0;
    memset(out, 0, (size_t)-layout);
    for (Py_ssize_t place = 0; place < rows.rows; place++) {
        Py_ssize_t row = rows.order[place], begin, length;
        if (!is_null(column, row)) {
            if (!bytes_of(column, layout, row, &begin, &length))
                return -1;
            total += length;
            if (total > column->data_length) /* no row comes twice */
                return -1;
        }
        int32_t narrow = (int32_t)total;
        if (layout == NARROW_OFFSETS)
            memcpy(out + 4 * (place + 1), &narrow, 4);
        else
            memcpy(out + 8 * (place + 1), &total, 8);
    }
    return layout == NARROW_OFFSETS && total > INT32_MAX ? -1 : total;
}

/* Copies the rows' bytes; take_offsets has checked the offsets, and these buffers do not change. */
INLINE bool take_bytes(const Column *column, Py_ssize_t layout, Rows rows, uint8_t *out,
                       Py_ssize_t size)
{
    Py_ssize_t at = 0;
    for (Py_ssize_t place = 0; place < rows.rows; place++) {
        Py_ssize_t row = rows.order[place], begin, length;
        if (is_null(column, row))
            continue;
        if (!bytes_of(column, layout, row, &begin, &length) || length > size - at)
            return false;
        /* 16 bytes are copied faster than up to 16; the next rows overwrite what is too much. */
        if (length <= 16 && size - at >= 16 && column->data_length - begin >= 16)
            memcpy(out + at, column->data + begin, 16);
        else if (length > 0)
            memcpy(out + at, column->data + begin, (size_t)length);
        at += length;
    }
    return true;
}

/* The buffers of the result: validity, offsets and data. */
typedef struct {
    PyObject *objects[3];
    Array arrays[3];
} Result;

/* Calls allocate(size) for a buffer. */
static bool add_buffer(Result *result, int which, PyObject *allocate, int64_t size)
{
    PyObject *object = PyObject_CallFunction(allocate, "L", (long long)size);
    if (object == NULL)
        return false;
    if (!take_array(object, &result->arrays[which], 1, true)) {
        Py_DECREF(object);
        return false;
    }
    result->objects[which] = object;
    if (result->arrays[which].length < size) {
        PyErr_SetString(PyExc_ValueError, "an allocated buffer is too short");
        return false;
    }
    return true;
}

/* Returns the number of nulls, or -1 with an exception set. */
static Py_ssize_t take_column_rows(const Column *column, Rows rows, PyObject *allocate,
                                   Result *result)
{
    Py_ssize_t layout = column->layout, nulls = 0, bits = (rows.rows + 7) / 8;
    int64_t size = layout == BITS ? bits : layout * rows.rows;
    PyThreadState *saved = NULL;
    if (column->validity != NULL) {
        if (!add_buffer(result, 0, allocate, bits))
            return -1;
        nulls = rows.rows - take_bits(column->validity, column->offset, rows,
                                      result->arrays[0].data);
    }
    if (layout < 0) {
        if (!add_buffer(result, 1, allocate, -layout * (rows.rows + 1)))
            return -1;
        uint8_t *out = result->arrays[1].data;
        saved = rows.rows < FEW_ROWS ? NULL : PyEval_SaveThread();
        size = layout == NARROW_OFFSETS ? take_offsets(column, NARROW_OFFSETS, rows, out)
                                        : take_offsets(column, WIDE_OFFSETS, rows, out);
        if (saved != NULL)
            PyEval_RestoreThread(saved);
    }
    if (size >= 0 && !add_buffer(result, 2, allocate, size))
        return -1;
    bool is_right = size >= 0;
    if (is_right) {
        uint8_t *out = result->arrays[2].data;
        saved = rows.rows < FEW_ROWS ? NULL : PyEval_SaveThread();
        if (layout > 0)
            take_values(column, rows, out);
        else if (layout == BITS)
            take_bits(column->data, column->offset, rows, out);
        else
            is_right = layout == NARROW_OFFSETS ? take_bytes(column, NARROW_OFFSETS, rows, out, size)
                                                : take_bytes(column, WIDE_OFFSETS, rows, out, size);
        if (saved != NULL)
            PyEval_RestoreThread(saved);
    }
    if (is_right)
        return nulls;
    PyErr_SetString(PyExc_ValueError, "offsets point beyond the data of the column");
    return -1;
}

/* Returns ([validity, perhaps offsets, data], number of nulls) of some rows of a column. */
static PyObject *taken(const Column *column, Rows rows, PyObject *allocate)
{
    Result result = {{NULL, NULL, NULL}, {{.data = NULL}}};
    PyObject *found = NULL;
    Py_ssize_t nulls = take_column_rows(column, rows, allocate, &result);
    for (int which = 0; which < 3; which++)
        if (result.objects[which] != NULL)
            release_arrays(&result.arrays[which], 1);
    PyObject *validity = nulls > 0 ? result.objects[0] : Py_None;
    if (nulls >= 0 && column->layout < 0)
        found = Py_BuildValue("[OOO]n", validity, result.objects[1], result.objects[2], nulls);
    else if (nulls >= 0)
        found = Py_BuildValue("[OO]n", validity, result.objects[2], nulls);
    for (int which = 0; which < 3; which++)
        Py_XDECREF(result.objects[which]);
    return found;
}

/* Returns the parts of a column, one for each channel that gets rows. */
static PyObject *divided_column(PyObject *parts, const int32_t *order, const int64_t *bounds,
                                Py_ssize_t channels, PyObject *allocate)
{
    Column column;
    if (!take_column(parts, &column))
        return NULL;
    PyObject *list = PyList_New(0);
    if (list != NULL && column.rows != bounds[channels]) {
        PyErr_SetString(PyExc_ValueError, "the columns differ in length");
        Py_CLEAR(list);
    }
    for (Py_ssize_t channel = 0; list != NULL && channel < channels; channel++) {
        Rows rows = {order + bounds[channel], bounds[channel + 1] - bounds[channel]};
        PyObject *part = rows.rows == 0 ? NULL : taken(&column, rows, allocate);
        if (rows.rows != 0 && (part == NULL || PyList_Append(list, part) < 0))
            Py_CLEAR(list);
        Py_XDECREF(part);
    }
    release_column(&column);
    return list;
}

/* Writes the order of the rows, and where the rows of each channel begin and end in it. Returns the
   divided columns. Returns none if all rows go to one channel. */
static PyObject *divide(PyObject *module, PyObject *arguments)
{
    PyObject *objects[3], *columns, *allocate;
    if (!PyArg_ParseTuple(arguments, "OOOOO", &objects[0], &objects[1], &objects[2], &columns,
                          &allocate))
        return NULL;
    Array arrays[3];
    static const Py_ssize_t sizes[] = {4, 4, 8};
    static const bool are_written[] = {false, true, true};
    if (!take_arrays(objects, arrays, sizes, are_written, 3))
        return NULL;
    Py_ssize_t rows = arrays[0].length, channels = arrays[2].length - 1;
    int32_t *order = arrays[1].data;
    int64_t *bounds = arrays[2].data;
    PyObject *list = NULL;
    if (!PyList_Check(columns))
        PyErr_SetString(PyExc_TypeError, "the columns are no list");
    else if (arrays[1].length != rows || rows > INT32_MAX || channels <= 0 || channels > INT32_MAX)
        PyErr_SetString(PyExc_ValueError, "the lengths of the arrays do not fit each other");
    else {
        PyThreadState *saved = rows < FEW_ROWS ? NULL : PyEval_SaveThread();
        bool is_right = order_rows(arrays[0].data, rows, channels, order, bounds);
        if (saved != NULL)
            PyEval_RestoreThread(saved);
        if (is_right)
            list = PyList_New(0);
        else
            PyErr_SetString(PyExc_IndexError, "a row has a channel that is out of range");
    }
    bool is_divided = list != NULL;
    for (Py_ssize_t channel = 0; is_divided && channel < channels; channel++)
        is_divided = bounds[channel + 1] - bounds[channel] < rows;
    for (Py_ssize_t at = 0; is_divided && list != NULL && at < PyList_Size(columns); at++) {
        PyObject *parts = PyList_GetItem(columns, at); /* borrowed */
        Py_XINCREF(parts);
        PyObject *column = NULL;
        if (parts != NULL)
            column = divided_column(parts, order, bounds, channels, allocate);
        Py_XDECREF(parts);
        if (column == NULL || PyList_Append(list, column) < 0)
            Py_CLEAR(list);
        Py_XDECREF(column);
    }
    release_arrays(arrays, 3);
    return list;
}

/* --- lists of Python values --------------------------------------------------------------------*/

/* Counts the values of each channel. Returns false with an exception set if there is no such channel.
   An object that is no integer may run Python code. */
static bool read_channels(PyObject *chosen, Py_ssize_t channels, Py_ssize_t rows, int32_t *of_rows,
                          Py_ssize_t *counts)
{
    for (Py_ssize_t row = 0; row < rows; row++) {
        PyObject *object = PyList_GetItem(chosen, row); /* borrowed; NULL: the list was shortened */
        long channel = object == NULL ? -1 : PyLong_AsLong(object);
        if (channel == -1 && PyErr_Occurred())
            return false;
        if (channel < 0 || channel >= channels) {
            PyErr_SetString(PyExc_IndexError, "a row has a channel that is out of range");
            return false;
        }
        of_rows[row] = (int32_t)channel;
        counts[channel]++;
    }
    return true;
}

/* Returns a list with a list for each channel. */
static PyObject *divided_list(PyObject *values, Py_ssize_t channels, Py_ssize_t rows,
                              const int32_t *of_rows, const Py_ssize_t *counts, PyObject **targets,
                              Py_ssize_t *places)
{
    PyObject *parts = PyList_New(0);
    for (Py_ssize_t channel = 0; parts != NULL && channel < channels; channel++) {
        targets[channel] = PyList_New(counts[channel]); /* borrowed from *parts* from here on */
        places[channel] = 0;
        if (targets[channel] == NULL || PyList_Append(parts, targets[channel]) < 0)
            Py_CLEAR(parts);
        Py_XDECREF(targets[channel]);
    }
    for (Py_ssize_t row = 0; parts != NULL && row < rows; row++) {
        int32_t channel = of_rows[row];
        PyObject *value = PyList_GetItem(values, row);
        Py_XINCREF(value);
        if (value == NULL || PyList_SetItem(targets[channel], places[channel]++, value) < 0)
            Py_CLEAR(parts);
    }
    return parts;
}

static PyObject *divide_lists(PyObject *module, PyObject *arguments)
{
    PyObject *chosen, *lists, *result = NULL;
    Py_ssize_t channels;
    if (!PyArg_ParseTuple(arguments, "O!nO!", &PyList_Type, &chosen, &channels, &PyList_Type,
                          &lists))
        return NULL;
    Py_ssize_t rows = PyList_Size(chosen);
    if (channels <= 0 || channels > INT32_MAX)
        return PyErr_Format(PyExc_ValueError, "%zd is no number of channels", channels);
    int32_t *of_rows = PyMem_Calloc((size_t)rows, sizeof(int32_t));
    Py_ssize_t *counts = PyMem_Calloc(2 * (size_t)channels, sizeof(Py_ssize_t));
    PyObject **targets = PyMem_Calloc((size_t)channels, sizeof(PyObject *));
    if (of_rows == NULL || counts == NULL || targets == NULL)
        PyErr_NoMemory();
    else if (read_channels(chosen, channels, rows, of_rows, counts))
        result = PyList_New(0);
    for (Py_ssize_t at = 0; result != NULL && at < PyList_Size(lists); at++) {
        PyObject *values = PyList_GetItem(lists, at), *parts = NULL;
        Py_XINCREF(values);
        if (values != NULL && (!PyList_Check(values) || PyList_Size(values) != rows))
            PyErr_SetString(PyExc_ValueError, "a column is no list, or the lists differ in length");
        else if (values != NULL)
            parts = divided_list(values, channels, rows, of_rows, counts, targets,
                                 counts + channels);
        if (parts == NULL || PyList_Append(result, parts) < 0)
            Py_CLEAR(result);
        Py_XDECREF(parts);
        Py_XDECREF(values);
    }
    PyMem_Free(of_rows);
    PyMem_Free(counts);
    PyMem_Free(targets);
    return result;
}

static PyMethodDef functions[] = {
    {"divide", divide, METH_VARARGS, NULL},
    {"divide_lists", divide_lists, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_dividing(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
