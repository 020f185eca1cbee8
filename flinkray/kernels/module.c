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

static int add_all(PyObject *module)
{
    if (add_aggregates(module) < 0)
        return -1;
    return add_snapshots(module);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_all}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "flinkray.kernels._native", .m_slots = slots};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
