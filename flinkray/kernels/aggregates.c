/* Sums, counts, minima and maxima of the values of each slot, and of each slot and pane.
   numpy_aggregates.py and numpy_panes.py define the results. */

#include "kernels.h"

#include <stdlib.h>

/* For each row: changes the number of the row's slot in *state*, and writes it to *out* unless *out*
   is NULL. Returns the first row whose slot is not below *groups*, or -1. */
typedef Py_ssize_t (*Step)(const int32_t *slots, const void *values, void *state, size_t groups,
                           void *out, Py_ssize_t rows);

/* In CHANGE, *s* is the number of the slot and *v* the value. A negative slot becomes 2**31 or more,
   which is not below *groups*. */
#define STEP(NAME, VALUE, STATE, CHANGE)                                                           \
    static Py_ssize_t NAME(const int32_t *slots, const void *of_rows, void *of_slots,              \
                           size_t groups, void *of_results, Py_ssize_t rows)                       \
    {                                                                                              \
        const VALUE *values = of_rows;                                                             \
        STATE *state = of_slots, *out = of_results;                                                \
        (void)values; /* not every step takes values */                                            \
        for (Py_ssize_t row = 0; row < rows; row++) {                                              \
            if ((uint32_t)slots[row] >= groups)                                                    \
                return row;                                                                        \
            STATE *s = &state[slots[row]];                                                         \
            CHANGE;                                                                                \
            if (out != NULL)                                                                       \
                out[row] = *s;                                                                     \
        }                                                                                          \
        return -1;                                                                                 \
    }

#define v values[row]

STEP(count, char, int64_t, *s += 1)
/* Of a 64-bit number: divided by 2**32 and rounded. */
STEP(upper_i8, int64_t, int64_t, *s += (v >> 32) + ((v >> 31) & 1))
STEP(upper_u8, uint64_t, int64_t, *s += (int64_t)(v >> 32))

/* Sums of integers are unsigned, because they wrap at 64 bits. */
#define OF_INTEGERS(CODE, NUMBER)                                                                  \
    STEP(sum_##CODE, NUMBER, uint64_t, *s += (uint64_t)v)                                          \
    STEP(min_##CODE, NUMBER, NUMBER, if (v < *s) *s = v)                                           \
    STEP(max_##CODE, NUMBER, NUMBER, if (v > *s) *s = v)

/* NaN is greater than every number, and a minimum begins with NaN. */
#define OF_FLOATS(CODE, NUMBER)                                                                    \
    STEP(sum_##CODE, NUMBER, double, *s += v)                                                      \
    STEP(min_##CODE, NUMBER, NUMBER, if (v < *s || *s != *s) *s = v)                               \
    STEP(max_##CODE, NUMBER, NUMBER, if (v > *s || v != v) *s = v)

OF_INTEGERS(i1, int8_t)
OF_INTEGERS(i2, int16_t)
OF_INTEGERS(i4, int32_t)
OF_INTEGERS(i8, int64_t)
OF_INTEGERS(u1, uint8_t)
OF_INTEGERS(u2, uint16_t)
OF_INTEGERS(u4, uint32_t)
OF_INTEGERS(u8, uint64_t)
OF_FLOATS(f4, float)
OF_FLOATS(f8, double)

typedef struct {
    const char *name; /* what the step does, and the type of the values */
    Step step;
    Py_ssize_t value_size, state_size; /* in bytes */
} Known;

#define KNOWN(CODE, SIZE)                                                                          \
    {"sum " #CODE, sum_##CODE, SIZE, 8}, {"min " #CODE, min_##CODE, SIZE, SIZE},                   \
        {"max " #CODE, max_##CODE, SIZE, SIZE}

static const Known known_steps[] = {
    {"count", count, 0, 8}, {"upper i8", upper_i8, 8, 8}, {"upper u8", upper_u8, 8, 8},
    KNOWN(i1, 1), KNOWN(i2, 2), KNOWN(i4, 4), KNOWN(i8, 8), KNOWN(u1, 1), KNOWN(u2, 2),
    KNOWN(u4, 4), KNOWN(u8, 8), KNOWN(f4, 4), KNOWN(f8, 8), {NULL, NULL, 0, 0}};

static const Known *step_named(const char *name)
{
    for (const Known *known = known_steps; known->name != NULL; known++)
        if (strcmp(known->name, name) == 0)
            return known;
    PyErr_Format(PyExc_ValueError, "there is no step %s", name);
    return NULL;
}

static PyObject *wrong_slot(Py_ssize_t row)
{
    return PyErr_Format(PyExc_IndexError, "the slot of row %zd is out of range", row);
}

/* aggregate(step, slots, values, state, results or None) */
static PyObject *aggregate(PyObject *module, PyObject *arguments)
{
    const char *name;
    PyObject *objects[4];
    if (!PyArg_ParseTuple(arguments, "sOOOO", &name, &objects[0], &objects[1], &objects[2],
                          &objects[3]))
        return NULL;
    const Known *known = step_named(name);
    if (known == NULL)
        return NULL;
    if (known->value_size == 0)
        return PyErr_Format(PyExc_ValueError, "step %s takes no values", name);
    Array arrays[4];
    const Py_ssize_t sizes[] = {4, known->value_size, known->state_size, known->state_size};
    static const bool are_written[] = {false, false, true, true};
    int number = objects[3] == Py_None ? 3 : 4;
    if (!take_arrays(objects, arrays, sizes, are_written, number))
        return NULL;
    Py_ssize_t rows = arrays[0].length;
    if (arrays[1].length != rows || (number == 4 && arrays[3].length != rows)) {
        release_arrays(arrays, number);
        PyErr_SetString(PyExc_ValueError, "slots, values and results differ in length");
        return NULL;
    }
    PyThreadState *saved = rows < FEW_ROWS ? NULL : PyEval_SaveThread();
    Py_ssize_t wrong = known->step(arrays[0].data, arrays[1].data, arrays[2].data,
                                   (size_t)arrays[2].length, number == 4 ? arrays[3].data : NULL,
                                   rows);
    if (saved != NULL)
        PyEval_RestoreThread(saved);
    release_arrays(arrays, number);
    if (wrong >= 0)
        return wrong_slot(wrong);
    Py_RETURN_NONE;
}

/* --- panes ------------------------------------------------------------------------------------ */

/* Rows that are handled by one step before the next step: their slots stay in the nearest cache. */
#define ROWS_AT_ONCE 4096

typedef struct {
    const Known *known;
    const char *values;  /* of the rows; NULL: the step takes none */
    const Array *states; /* of the panes */
} PaneStep;

typedef struct {
    Array *taken; /* all arrays, to release them; the others point into these */
    int number;
    const Array *slots, *ends, *places, *marks;
    int64_t mark;
    PaneStep *of_rows;
    Py_ssize_t panes, steps;
} Addition;

/* Marks the slots of rows, and counts the rows unless *counts* is NULL. Returns the first row whose
   slot is out of range, or -1. */
static Py_ssize_t mark_rows(const int32_t *slots, const Array *marks, int64_t mark,
                            const Array *counts, Py_ssize_t rows)
{
    int64_t *of_slots = marks->data, *numbers = counts == NULL ? NULL : counts->data;
    size_t groups = (size_t)marks->length;
    if (counts != NULL && counts->length < marks->length)
        groups = (size_t)counts->length;
    for (Py_ssize_t row = 0; row < rows; row++) {
        if ((uint32_t)slots[row] >= groups)
            return row;
        of_slots[slots[row]] = mark;
        if (numbers != NULL)
            numbers[slots[row]]++;
    }
    return -1;
}

/* Returns the first row whose slot or pane is out of range, or -1. */
static Py_ssize_t add_additions(const Addition *a)
{
    const int32_t *slots = a->slots->data;
    const int64_t *ends = a->ends->data, *places = a->places->data;
    Py_ssize_t row = 0, runs = a->ends->length;
    for (Py_ssize_t run = 0; run < runs; run++) {
        int64_t place = places[run], end = ends[run];
        if (place < 0 || place >= a->panes || end > a->slots->length)
            return row;
        while (row < end) {
            Py_ssize_t rows = end - row < ROWS_AT_ONCE ? end - row : ROWS_AT_ONCE;
            const PaneStep *step = a->of_rows, *last = a->of_rows + a->steps;
            const Array *counts = NULL;
            if (step < last && step->values == NULL)
                counts = &step++->states[place];
            Py_ssize_t wrong = mark_rows(slots + row, &a->marks[place], a->mark, counts, rows);
            for (; wrong < 0 && step < last; step++) {
                const char *values = step->values;
                if (values != NULL)
                    values += row * step->known->value_size;
                const Array *state = &step->states[place];
                wrong = step->known->step(slots + row, values, state->data, (size_t)state->length,
                                          NULL, rows);
            }
            if (wrong >= 0)
                return row + wrong;
            row += rows;
        }
    }
    return -1;
}

/* Takes the next array of the addition. Returns NULL with an exception set if it cannot. */
static const Array *take_next(Addition *a, PyObject *object, Py_ssize_t size, bool is_written)
{
    Array *array = &a->taken[a->number];
    if (!take_array(object, array, size, is_written))
        return NULL;
    a->number++;
    return array;
}

/* Takes an array for each pane. */
static const Array *take_for_panes(Addition *a, PyObject *sequence, Py_ssize_t size)
{
    const Array *first = &a->taken[a->number];
    for (Py_ssize_t place = 0; place < a->panes; place++) {
        PyObject *item = PySequence_GetItem(sequence, place);
        const Array *array = item == NULL ? NULL : take_next(a, item, size, true);
        Py_XDECREF(item);
        if (array == NULL)
            return NULL;
    }
    return first;
}

/* Takes a step from a tuple: name, values or None, states of the panes. */
static bool take_step(Addition *a, PyObject *tuple, PaneStep *step)
{
    const char *name;
    PyObject *values, *states;
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a step is a tuple");
        return false;
    }
    if (!PyArg_ParseTuple(tuple, "sOO", &name, &values, &states))
        return false;
    step->known = step_named(name);
    if (step->known == NULL)
        return false;
    step->states = take_for_panes(a, states, step->known->state_size);
    if (step->states == NULL)
        return false;
    if (step->known->value_size == 0)
        return true;
    const Array *array = take_next(a, values, step->known->value_size, false);
    if (array == NULL)
        return false;
    if (array->length != a->slots->length) {
        PyErr_SetString(PyExc_ValueError, "slots and values differ in length");
        return false;
    }
    step->values = array->data;
    return true;
}

static bool take_addition(Addition *a, PyObject *const *of_rows, PyObject *marks, PyObject *steps)
{
    static const Py_ssize_t sizes[] = {4, 8, 8};
    if (!take_arrays(of_rows, a->taken, sizes, (const bool[]){false, false, false}, 3))
        return false;
    a->number = 3;
    a->slots = &a->taken[0];
    a->ends = &a->taken[1];
    a->places = &a->taken[2];
    if (a->ends->length != a->places->length) {
        PyErr_SetString(PyExc_ValueError, "ends and places differ in length");
        return false;
    }
    a->marks = take_for_panes(a, marks, 8);
    if (a->marks == NULL)
        return false;
    for (Py_ssize_t place = 0; place < a->steps; place++) {
        PyObject *tuple = PySequence_GetItem(steps, place);
        bool is_taken = tuple != NULL && take_step(a, tuple, &a->of_rows[place]);
        Py_XDECREF(tuple);
        if (!is_taken)
            return false;
    }
    return true;
}

/* add_to_panes(slots, ends, places, marks, mark, steps): *ends* is the row after each run, *places*
   the pane of each run. The panes are counted from 0. *marks* has an array for each pane. */
static PyObject *add_to_panes(PyObject *module, PyObject *arguments)
{
    PyObject *of_rows[3], *marks, *steps;
    long long mark;
    if (!PyArg_ParseTuple(arguments, "OOOOLO!", &of_rows[0], &of_rows[1], &of_rows[2], &marks,
                          &mark, &PyTuple_Type, &steps))
        return NULL;
    Addition a = {.mark = mark, .panes = PySequence_Size(marks), .steps = PyTuple_Size(steps)};
    if (a.panes < 0)
        return NULL;
    if (a.panes > 1 << 20 || a.steps > 1 << 8)
        return PyErr_Format(PyExc_ValueError, "too many panes or steps");
    size_t most = 3 + (size_t)a.panes + (size_t)a.steps * ((size_t)a.panes + 1);
    a.taken = calloc(most, sizeof(Array));
    a.of_rows = calloc((size_t)a.steps + 1, sizeof(PaneStep));
    Py_ssize_t wrong = -1;
    if (a.taken == NULL || a.of_rows == NULL) {
        PyErr_NoMemory();
    } else if (take_addition(&a, of_rows, marks, steps)) {
        PyThreadState *saved = a.slots->length < FEW_ROWS ? NULL : PyEval_SaveThread();
        wrong = add_additions(&a);
        if (saved != NULL)
            PyEval_RestoreThread(saved);
        if (wrong >= 0)
            wrong_slot(wrong);
    }
    release_arrays(a.taken, a.number);
    free(a.taken);
    free(a.of_rows);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"aggregate", aggregate, METH_VARARGS, NULL},
    {"add_to_panes", add_to_panes, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_aggregates(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
