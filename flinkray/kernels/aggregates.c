/* Sums of the values of each slot. numpy_aggregates.py defines the results. */

#include "kernels.h"

/* For each row: state[slot] += value, and out[row] = state[slot]. Without *out*, only the first.
   Returns the first row whose slot is out of range, or -1. */
#define SUM_ROWS(NAME, NUMBER)                                                                     \
    static Py_ssize_t NAME(const int32_t *slots, const NUMBER *values, NUMBER *state,              \
                           Py_ssize_t groups, NUMBER *out, Py_ssize_t rows)                        \
    {                                                                                              \
        for (Py_ssize_t row = 0; row < rows; row++) {                                              \
            int32_t slot = slots[row];                                                             \
            if (slot < 0 || slot >= groups)                                                        \
                return row;                                                                        \
            state[slot] += values[row];                                                            \
            if (out != NULL)                                                                       \
                out[row] = state[slot];                                                            \
        }                                                                                          \
        return -1;                                                                                 \
    }

SUM_ROWS(sum_integers, uint64_t) /* unsigned: sums wrap at 64 bits */
SUM_ROWS(sum_doubles, double)

static PyObject *sums(PyObject *arguments, bool is_running)
{
    int is_double;
    PyObject *objects[4];
    if (!PyArg_ParseTuple(arguments, is_running ? "pOOOO" : "pOOO", &is_double, &objects[0],
                          &objects[1], &objects[2], &objects[3]))
        return NULL;
    Array arrays[4];
    static const Py_ssize_t sizes[] = {4, 8, 8, 8};
    static const bool are_written[] = {false, false, true, true};
    int number = is_running ? 4 : 3;
    if (!take_arrays(objects, arrays, sizes, are_written, number))
        return NULL;
    Py_ssize_t rows = arrays[0].length, wrong = -1;
    if (arrays[1].length != rows || (is_running && arrays[3].length != rows)) {
        release_arrays(arrays, number);
        PyErr_SetString(PyExc_ValueError, "slots, values and results differ in length");
        return NULL;
    }
    void *out = is_running ? arrays[3].data : NULL;
    PyThreadState *saved = rows < FEW_ROWS ? NULL : PyEval_SaveThread();
    if (is_double)
        wrong = sum_doubles(arrays[0].data, arrays[1].data, arrays[2].data, arrays[2].length, out,
                            rows);
    else
        wrong = sum_integers(arrays[0].data, arrays[1].data, arrays[2].data, arrays[2].length, out,
                             rows);
    if (saved != NULL)
        PyEval_RestoreThread(saved);
    release_arrays(arrays, number);
    if (wrong >= 0)
        return PyErr_Format(PyExc_IndexError, "the slot of row %zd is out of range", wrong);
    Py_RETURN_NONE;
}

static PyObject *running_sums(PyObject *module, PyObject *arguments)
{
    return sums(arguments, true);
}

static PyObject *add_sums(PyObject *module, PyObject *arguments)
{
    return sums(arguments, false);
}

static PyMethodDef functions[] = {
    {"running_sums", running_sums, METH_VARARGS, NULL},
    {"add_sums", add_sums, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_aggregates(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
