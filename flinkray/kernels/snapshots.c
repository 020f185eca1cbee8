/* Columns of plain Python values for snapshots. value_columns.py and Arrow define the results. */

#include "kernels.h"

#define BLOCK 64          /* objects that are asked for before the first of them is read */
#define MOST_EXPECTED 256 /* letters for which a row has room from the start */

#ifdef __GNUC__
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

/* A column of values of one type. Tuples have a column for each part, all others have arrays. */
typedef struct ObjectColumn {
    PyTypeObject *type;
    Py_ssize_t width; /* number of parts */
    struct ObjectColumn *parts;
    PyObject *numbers; /* bytes: integers, doubles, or the offsets of texts */
    int64_t *items;    /* those in *numbers* */
    PyObject *letters; /* bytearray: of all texts, and room for more */
} ObjectColumn;

static void free_column(ObjectColumn *column)
{
    for (Py_ssize_t part = 0; column->parts != NULL && part < column->width; part++)
        free_column(&column->parts[part]);
    PyMem_Free(column->parts);
    Py_CLEAR(column->numbers);
    Py_CLEAR(column->letters);
}

static bool is_text(const ObjectColumn *column)
{
    return column->type == &PyUnicode_Type || column->type == &PyBytes_Type;
}

/* Finds the letters of a text, as UTF-8. Returns false, also without an exception, if it has none. */
static bool letters_of(PyObject *value, char **letters, Py_ssize_t *length)
{
    if (Py_TYPE(value) == &PyBytes_Type)
        return PyBytes_AsStringAndSize(value, letters, length) == 0;
    *letters = (char *)PyUnicode_AsUTF8AndSize(value, length);
    if (*letters == NULL && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
        PyErr_Clear(); /* half of a surrogate pair */
    return *letters != NULL;
}

/* Prepares the columns for *rows* values like *value*, with at most *depth* levels of tuples.
   Returns false, also without an exception, if there is no column for this value. */
static bool plan(ObjectColumn *column, PyObject *value, Py_ssize_t rows, int depth)
{
    column->type = Py_TYPE(value);
    if (column->type == &PyTuple_Type) {
        if (depth <= 0)
            return false;
        Py_ssize_t width = PyTuple_Size(value);
        column->parts = PyMem_Calloc(width > 0 ? width : 1, sizeof(ObjectColumn));
        if (column->parts == NULL)
            return PyErr_NoMemory() != NULL;
        column->width = width;
        for (Py_ssize_t part = 0; part < width; part++)
            if (!plan(&column->parts[part], PyTuple_GetItem(value, part), rows, depth - 1))
                return false;
        return true;
    }
    if (!is_text(column) && column->type != &PyLong_Type && column->type != &PyFloat_Type)
        return false;
    column->numbers = PyBytes_FromStringAndSize(NULL, (rows + is_text(column)) * sizeof(int64_t));
    if (column->numbers == NULL)
        return false;
    column->items = (int64_t *)PyBytes_AsString(column->numbers);
    if (!is_text(column))
        return true;
    char *letters;
    Py_ssize_t length;
    if (!letters_of(value, &letters, &length))
        return false;
    column->items[0] = 0;
    Py_ssize_t expected = length < MOST_EXPECTED ? length + 1 : MOST_EXPECTED;
    column->letters = PyByteArray_FromStringAndSize(NULL, rows * expected);
    return column->letters != NULL;
}

static bool put_text(ObjectColumn *column, Py_ssize_t row, PyObject *value)
{
    char *letters;
    Py_ssize_t length;
    if (!letters_of(value, &letters, &length))
        return false;
    Py_ssize_t begin = column->items[row], room = PyByteArray_Size(column->letters);
    if (length > room - begin) {
        if (length > PY_SSIZE_T_MAX / 2 - begin)
            return PyErr_NoMemory() != NULL; /* false */
        if (PyByteArray_Resize(column->letters, begin + length + (begin + length) / 2) < 0)
            return false;
    }
    memcpy(PyByteArray_AsString(column->letters) + begin, letters, length);
    column->items[row + 1] = begin + length;
    return true;
}

/* Puts a value into its row. Returns false, also without an exception, if the value does not fit. */
static bool put(ObjectColumn *column, Py_ssize_t row, PyObject *value)
{
    if (Py_TYPE(value) != column->type)
        return false;
    if (is_text(column))
        return put_text(column, row, value);
    if (column->type == &PyLong_Type) {
        int overflow;
        column->items[row] = PyLong_AsLongLongAndOverflow(value, &overflow);
        return !overflow;
    }
    if (column->type == &PyFloat_Type) {
        double number = PyFloat_AsDouble(value);
        memcpy(&column->items[row], &number, sizeof number);
        return true;
    }
    if (PyTuple_Size(value) != column->width)
        return false;
    for (Py_ssize_t part = 0; part < column->width; part++)
        if (!put(&column->parts[part], row, PyTuple_GetItem(value, part)))
            return false;
    return true;
}

/* Returns (name of the type, columns of the parts) of tuples, (name, numbers) of numbers, and
   (name, offsets, letters) of texts. */
static PyObject *result_of(ObjectColumn *column, Py_ssize_t rows)
{
    if (column->type == &PyTuple_Type) {
        PyObject *parts = PyTuple_New(column->width);
        for (Py_ssize_t part = 0; parts != NULL && part < column->width; part++) {
            PyObject *found = result_of(&column->parts[part], rows);
            if (found == NULL || PyTuple_SetItem(parts, part, found) < 0)
                Py_CLEAR(parts);
        }
        return parts == NULL ? NULL : Py_BuildValue("sN", "tuple", parts);
    }
    if (!is_text(column))
        return Py_BuildValue("sO", column->type == &PyLong_Type ? "int" : "float", column->numbers);
    if (PyByteArray_Resize(column->letters, column->items[rows]) < 0)
        return NULL;
    const char *name = column->type == &PyUnicode_Type ? "str" : "bytes";
    return Py_BuildValue("sOO", name, column->numbers, column->letters);
}

/* Reads *rows* rows: the items of a list or tuple, or the keys and values of a dictionary from
   *position* on, which is then the position of the next entry. Returns None if a value does not fit.
   The interpreter's lock is held, and no code of a program is called: nothing changes meanwhile. */
static PyObject *read_rows(PyObject *values, bool is_dictionary, Py_ssize_t *position,
                           Py_ssize_t rows, int depth)
{
    ObjectColumn columns[2] = {{0}, {0}};
    PyObject *block[2][BLOCK] = {{NULL}};
    int width = is_dictionary ? 2 : 1;
    bool fits = rows > 0 && rows <= PyObject_Size(values), is_list = PyList_CheckExact(values);
    for (Py_ssize_t begin = 0; fits && begin < rows; begin += BLOCK) {
        Py_ssize_t number = rows - begin < BLOCK ? rows - begin : BLOCK;
        for (Py_ssize_t row = 0; fits && row < number; row++) {
            if (is_dictionary)
                fits = PyDict_Next(values, position, &block[0][row], &block[1][row]);
            else
                block[0][row] = is_list ? PyList_GetItem(values, begin + row)
                                        : PyTuple_GetItem(values, begin + row);
            for (int column = 0; column < width; column++)
                PREFETCH(block[column][row]);
        }
        for (int column = 0; fits && begin == 0 && column < width; column++)
            fits = plan(&columns[column], block[column][0], rows, depth);
        for (Py_ssize_t row = 0; fits && row < number; row++)
            for (int column = 0; fits && column < width; column++)
                fits = put(&columns[column], begin + row, block[column][row]);
    }
    PyObject *first = NULL, *result = NULL;
    if (fits && (first = result_of(&columns[0], rows)) != NULL)
        result = is_dictionary ? Py_BuildValue("NNn", first, result_of(&columns[1], rows), *position)
                               : first;
    else if (!PyErr_Occurred())
        result = Py_NewRef(Py_None);
    free_column(&columns[0]);
    free_column(&columns[1]);
    return result;
}

static PyObject *columns_of(PyObject *module, PyObject *arguments)
{
    PyObject *values;
    int depth;
    if (!PyArg_ParseTuple(arguments, "Oi", &values, &depth))
        return NULL;
    if (!PyList_CheckExact(values) && !PyTuple_CheckExact(values)) /* a subclass has a size of its own */
        Py_RETURN_NONE;
    return read_rows(values, false, NULL, PyObject_Size(values), depth);
}

static PyObject *columns_of_entries(PyObject *module, PyObject *arguments)
{
    PyObject *entries;
    Py_ssize_t position, rows;
    int depth;
    if (!PyArg_ParseTuple(arguments, "O!nni", &PyDict_Type, &entries, &position, &rows, &depth))
        return NULL;
    if (!PyDict_CheckExact(entries))
        Py_RETURN_NONE;
    return read_rows(entries, true, &position, rows, depth);
}

static PyMethodDef functions[] = {
    {"columns_of", columns_of, METH_VARARGS, NULL},
    {"columns_of_entries", columns_of_entries, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_snapshots(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
