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

/* Adds a file's functions and types to the module. */
int add_aggregates(PyObject *module);
int add_snapshots(PyObject *module);

#endif
