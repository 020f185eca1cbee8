/* Pairs of rows with equal keys in a window. numpy_joins.py defines the results. */

#include "kernels.h"

typedef struct {
    const int64_t *windows; /* ascending */
    const int32_t *keys;    /* by number; -1: the row has no partner */
    Py_ssize_t rows;
} Side;

/* Returns the row after those of the first window from *row* on. */
static Py_ssize_t end_of_window(const Side *side, Py_ssize_t row)
{
    int64_t window = side->windows[row];
    while (row < side->rows && side->windows[row] == window)
        row++;
    return row;
}

#define WRONG_KEY -1
#define NO_ROOM -2

/* Counts the pairs, or writes their rows to *lefts* and *rights* if these are not NULL.
   Pairs are in the order of their window, then of their left row, then of their right row.
   *found* has an item for each key, all 0 before: in a window, the number of right rows with the
   key or, if pairs are written, the first of these rows, plus 1. *next*: the next right
   row with the same key, plus 1. */
static Py_ssize_t match(const Side *left, const Side *right, int32_t *found, Py_ssize_t keys,
                        int32_t *next, int64_t *lefts, int64_t *rights, Py_ssize_t room)
{
    Py_ssize_t pairs = 0, mine = 0, theirs = 0;
    while (mine < left->rows && theirs < right->rows) {
        if (left->windows[mine] != right->windows[theirs]) {
            if (left->windows[mine] < right->windows[theirs])
                mine++;
            else
                theirs++;
            continue;
        }
        Py_ssize_t my_end = end_of_window(left, mine), their_end = end_of_window(right, theirs);
        for (Py_ssize_t row = their_end - 1; row >= theirs; row--) {
            int32_t key = right->keys[row];
            if (key < 0)
                continue;
            if (key >= keys)
                return WRONG_KEY;
            if (lefts == NULL) {
                found[key]++;
            } else {
                next[row] = found[key];
                found[key] = (int32_t)(row + 1);
            }
        }
        for (; mine < my_end; mine++) {
            int32_t key = left->keys[mine];
            if (key < 0)
                continue;
            if (key >= keys)
                return WRONG_KEY;
            if (lefts == NULL) {
                pairs += found[key];
                continue;
            }
            for (int32_t row = found[key]; row > 0; row = next[row - 1]) {
                if (pairs == room)
                    return NO_ROOM;
                lefts[pairs] = mine;
                rights[pairs++] = row - 1;
            }
        }
        for (; theirs < their_end; theirs++)
            if (right->keys[theirs] >= 0)
                found[right->keys[theirs]] = 0;
    }
    return pairs;
}

/* match_rows(left windows, left keys, right windows, right keys, number of keys[, lefts, rights]):
   returns the number of pairs. */
static PyObject *match_rows(PyObject *module, PyObject *arguments)
{
    PyObject *objects[6] = {NULL};
    Py_ssize_t keys;
    if (!PyArg_ParseTuple(arguments, "OOOOn|OO", &objects[0], &objects[1], &objects[2],
                          &objects[3], &keys, &objects[4], &objects[5]))
        return NULL;
    if (keys < 0 || (objects[4] != NULL && objects[5] == NULL))
        return PyErr_Format(PyExc_TypeError, "wrong number of keys, or of arrays");
    Array arrays[6] = {0};
    static const Py_ssize_t sizes[] = {8, 4, 8, 4, 8, 8};
    static const bool are_written[] = {false, false, false, false, true, true};
    int number = objects[4] == NULL ? 4 : 6;
    if (!take_arrays(objects, arrays, sizes, are_written, number))
        return NULL;
    Side left = {arrays[0].data, arrays[1].data, arrays[0].length};
    Side right = {arrays[2].data, arrays[3].data, arrays[2].length};
    PyObject *result = NULL;
    int32_t *found = PyMem_Calloc(keys, sizeof(int32_t));
    int32_t *next = PyMem_Calloc(right.rows, sizeof(int32_t));
    if (found == NULL || next == NULL) {
        PyErr_NoMemory();
    } else if (arrays[1].length != left.rows || arrays[3].length != right.rows ||
               right.rows >= INT32_MAX || arrays[4].length != arrays[5].length) {
        PyErr_Format(PyExc_ValueError, "arrays of one side differ in length");
    } else {
        PyThreadState *saved = left.rows + right.rows < FEW_ROWS ? NULL : PyEval_SaveThread();
        Py_ssize_t pairs = match(&left, &right, found, keys, next, arrays[4].data, arrays[5].data,
                                 arrays[4].length);
        if (saved != NULL)
            PyEval_RestoreThread(saved);
        if (pairs == WRONG_KEY)
            PyErr_Format(PyExc_IndexError, "the key of a row is out of range");
        else if (pairs == NO_ROOM)
            PyErr_Format(PyExc_ValueError, "there are more pairs than room for them");
        else
            result = PyLong_FromSsize_t(pairs);
    }
    PyMem_Free(found);
    PyMem_Free(next);
    release_arrays(arrays, number);
    return result;
}

static PyMethodDef functions[] = {
    {"match_rows", match_rows, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_joins(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
