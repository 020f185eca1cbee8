/* What the files of the compiled kernels share.

   Each kernel has a Python or NumPy function that defines its results; see docs/architecture.md.
   Kernels take objects with the buffer protocol (NumPy arrays, Arrow buffers), check their sizes,
   and refuse a wrong index instead of reading beyond a buffer. */

#ifndef FLINKRAY_KERNELS_H
#define FLINKRAY_KERNELS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Below this number of rows a kernel keeps the interpreter's lock: giving it up and taking it again
   can cost more than the work. */
#define FEW_ROWS 8192

typedef struct {
    Py_buffer view;
    void *data;
    Py_ssize_t length; /* in items */
} Array;

/* Takes the contiguous buffer of *object*, whose size is a multiple of *size* bytes.
   Returns false with an exception set if it cannot. */
bool take_array(PyObject *object, Array *array, Py_ssize_t size, bool is_written);

/* Takes the buffers of *number* objects at once; releases all of them if one cannot be taken. */
bool take_arrays(PyObject *const *objects, Array *arrays, const Py_ssize_t *sizes,
                 const bool *are_written, int number);

void release_arrays(Array *arrays, int number);

#define INLINE static inline __attribute__((always_inline))

/* An Arrow array. Value *row* is at index *offset* + *row* of the buffers. */
typedef struct {
    Py_ssize_t layout; /* bytes of a value; BITS; or -4 or -8: values have offsets of this size */
    Py_ssize_t offset, rows;
    const uint8_t *validity; /* NULL: there are no nulls */
    const uint8_t *offsets;
    const uint8_t *data;
    Py_ssize_t data_length; /* in bytes */
    Array arrays[3];
    int taken;
} Column;

#define BITS 0
#define NARROW_OFFSETS (-4)
#define WIDE_OFFSETS (-8)

/* Takes the buffers of an Arrow array. *parts*: tuple of layout, offset, rows, and the buffers of
   validity, offsets and data (None: there is none). Checks that the buffers hold all rows, and that
   there are at most INT32_MAX rows. Returns false with an exception set if a check fails. */
bool take_column(PyObject *parts, Column *column);

void release_column(Column *column);

INLINE bool bit_at(const uint8_t *bits, Py_ssize_t index)
{
    return bits[index >> 3] >> (index & 7) & 1;
}

INLINE bool is_null(const Column *column, Py_ssize_t row)
{
    return column->validity != NULL && !bit_at(column->validity, column->offset + row);
}

/* Finds the bytes of the value of a row of a column with offsets, whose *layout* is a constant where
   the compiler unfolds this. Returns false if they are not in the buffer. */
INLINE bool bytes_of(const Column *column, Py_ssize_t layout, Py_ssize_t row, Py_ssize_t *begin,
                     Py_ssize_t *length)
{
    const uint8_t *offsets = column->offsets - layout * (column->offset + row);
    int64_t ends[2];
    if (layout == NARROW_OFFSETS) {
        int32_t narrow[2];
        memcpy(narrow, offsets, sizeof narrow);
        ends[0] = narrow[0], ends[1] = narrow[1];
    } else
        memcpy(ends, offsets, sizeof ends);
    *begin = ends[0], *length = ends[1] - ends[0];
    return ends[0] >= 0 && ends[0] <= ends[1] && ends[1] <= column->data_length;
}

/* The first *length* bytes, 1 to 8, of a part of a buffer that ends *left* bytes on. The last of them
   is the highest byte of the word; the bytes before the first one are 0. */
INLINE uint64_t load_up_to_8(const uint8_t *at, Py_ssize_t length, Py_ssize_t left)
{
    uint64_t word = 0;
    if (left < 8)
        memcpy(&word, at, length);
    else
        memcpy(&word, at, 8);
    return word << (8 * (8 - length));
}

/* Adds a file's functions and types to the module. */
int add_aggregates(PyObject *module);
int add_dividing(PyObject *module);
int add_joins(PyObject *module);
int add_keys(PyObject *module);
int add_rows(PyObject *module);
int add_snapshots(PyObject *module);

#endif
