/* The extension module flinkray.kernels._native, and how kernels take arrays. */

#include "kernels.h"

bool take_array(PyObject *object, Array *array, Py_ssize_t size, bool is_written)
{
    if (PyObject_GetBuffer(object, &array->view, is_written ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return false;
    if (array->view.len % size != 0) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are no whole number of items of %zd bytes",
                     array->view.len, size);
        PyBuffer_Release(&array->view);
        return false;
    }
    array->data = array->view.buf;
    array->length = array->view.len / size;
    return true;
}

bool take_arrays(PyObject *const *objects, Array *arrays, const Py_ssize_t *sizes,
                 const bool *are_written, int number)
{
    for (int taken = 0; taken < number; taken++)
        if (!take_array(objects[taken], &arrays[taken], sizes[taken], are_written[taken])) {
            release_arrays(arrays, taken);
            return false;
        }
    return true;
}

void release_arrays(Array *arrays, int number)
{
    while (number-- > 0)
        PyBuffer_Release(&arrays[number].view);
}

static bool holds_rows(const Column *column)
{
    Py_ssize_t end = column->offset + column->rows, layout = column->layout;
    const Array *arrays = column->arrays;
    if (column->rows == 0)
        return true;
    if (column->validity != NULL && arrays[0].length < end / 8 + (end % 8 != 0))
        return false;
    if (layout == BITS)
        return arrays[2].length >= end / 8 + (end % 8 != 0);
    if (layout > 0)
        return arrays[2].length / layout >= end;
    return column->offsets != NULL && arrays[1].length > end;
}

bool take_column(PyObject *parts, Column *column)
{
    PyObject *objects[3];
    if (!PyTuple_Check(parts)) {
        PyErr_SetString(PyExc_TypeError, "a column is a tuple");
        return false;
    }
    if (!PyArg_ParseTuple(parts, "nnnOOO", &column->layout, &column->offset, &column->rows,
                          &objects[0], &objects[1], &objects[2]))
        return false;
    Py_ssize_t layout = column->layout;
    bool are_sizes_right = layout >= BITS || layout == NARROW_OFFSETS || layout == WIDE_OFFSETS;
    if (!are_sizes_right || column->offset < 0 || column->rows < 0 || column->rows > INT32_MAX
        || column->offset > PY_SSIZE_T_MAX - column->rows) {
        PyErr_SetString(PyExc_ValueError, "a column has no such layout or size");
        return false;
    }
    Py_ssize_t sizes[] = {1, layout < 0 ? -layout : 1, 1};
    const void *data[3];
    for (column->taken = 0; column->taken < 3; column->taken++) {
        Array *array = &column->arrays[column->taken];
        memset(array, 0, sizeof(Array)); /* releasing such a view does nothing */
        if (objects[column->taken] != Py_None
            && !take_array(objects[column->taken], array, sizes[column->taken], false)) {
            release_column(column);
            return false;
        }
        data[column->taken] = array->data;
    }
    column->validity = data[0], column->offsets = data[1], column->data = data[2];
    column->data_length = column->arrays[2].length;
    if (!holds_rows(column)) {
        release_column(column);
        PyErr_SetString(PyExc_ValueError, "the buffers of a column are too short for its rows");
        return false;
    }
    return true;
}

void release_column(Column *column)
{
    release_arrays(column->arrays, column->taken);
}

static int add_all(PyObject *module)
{
    int (*const all[])(PyObject *) = {add_aggregates, add_dividing, add_joins, add_keys, add_rows, add_snapshots};
    for (size_t each = 0; each < sizeof all / sizeof *all; each++)
        if (all[each](module) < 0)
            return -1;
    PyObject *sources = PyLong_FromUnsignedLong(SOURCES);
    int added = sources == NULL ? -1 : PyModule_AddObjectRef(module, "sources", sources);
    Py_XDECREF(sources);
    return added;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_all}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "flinkray.kernels._native", .m_slots = slots};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
