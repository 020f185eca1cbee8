/* Rows as Python objects: the loop around a user's function, handles of state, checks of types.
   python_rows.py defines the results. User code runs inside these functions and may change all that
   it can reach, so they own a reference to each object that they use across a call. */

#include "kernels.h"
#include <stddef.h>
#include <structmember.h>

#define DEEPEST 8 /* tuples within tuples; values that are nested more deeply are left to Python */

/* Puts another object into a field, which may be empty. */
static void replace(PyObject **field, PyObject *value)
{
    PyObject *before = *field;
    *field = Py_NewRef(value);
    Py_XDECREF(before);
}

/* --- types of values ------------------------------------------------------------------------- */

/* Returns whether the type of a value is in the set *kinds*, or the value is a tuple of such values.
   *kinds* contains int and str. Returns -1 with an exception set if comparing types fails. */
static int is_of(PyObject *kinds, PyObject *value, int depth)
{
    PyTypeObject *kind = Py_TYPE(value);
    if (kind == &PyLong_Type || kind == &PyUnicode_Type)
        return 1;
    if (kind != &PyTuple_Type)
        return PySet_Contains(kinds, (PyObject *)kind);
    Py_ssize_t parts = PyTuple_Size(value);
    int found = depth < DEEPEST;
    for (Py_ssize_t part = 0; found == 1 && part < parts; part++)
        found = is_of(kinds, PyTuple_GetItem(value, part), depth + 1);
    return found;
}

/* are_of(kinds, values): whether is_of holds for each item of a list. */
static PyObject *are_of(PyObject *module, PyObject *arguments)
{
    PyObject *kinds, *values;
    if (!PyArg_ParseTuple(arguments, "OO!", &kinds, &PyList_Type, &values))
        return NULL;
    int found = 1;
    for (Py_ssize_t place = 0; found == 1 && place < PyList_Size(values); place++) {
        PyObject *value = Py_NewRef(PyList_GetItem(values, place));
        found = is_of(kinds, value, 0);
        Py_DECREF(value);
    }
    return found < 0 ? NULL : PyBool_FromLong(found);
}

/* owner(kinds, copy) returns a function that returns its argument if is_of holds, else a copy. */
static PyObject *own_value(PyObject *both, PyObject *value)
{
    int found = is_of(PyTuple_GetItem(both, 0), value, 0);
    if (found < 0)
        return NULL;
    return found ? Py_NewRef(value)
                 : PyObject_CallFunctionObjArgs(PyTuple_GetItem(both, 1), value, NULL);
}

static PyMethodDef own_definition = {
    "own", own_value, METH_O,
    "Return the value itself if nobody can change it, else a copy."};

static PyObject *owner(PyObject *module, PyObject *both)
{
    PyObject *kinds, *copy;
    if (!PyArg_ParseTuple(both, "O!O", &PySet_Type, &kinds, &copy))
        return NULL;
    return PyCFunction_New(&own_definition, both);
}

/* --- the present key ------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *key;
} Holder;

static int traverse_holder(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Holder *)self)->key);
    return 0;
}

static int clear_holder(PyObject *self)
{
    Py_CLEAR(((Holder *)self)->key);
    return 0;
}

/* Deallocates an object of a heap type, whose own references *clear* releases. */
static void deallocate(PyObject *self, inquiry clear)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static void deallocate_holder(PyObject *self)
{
    deallocate(self, clear_holder);
}

static PyMemberDef holder_members[] = {
    {"key", T_OBJECT_EX, offsetof(Holder, key), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot holder_slots[] = {
    {Py_tp_traverse, traverse_holder}, {Py_tp_clear, clear_holder},
    {Py_tp_dealloc, deallocate_holder}, {Py_tp_members, holder_members},
    {Py_tp_doc, "Holds the present key."}, {0, NULL},
};

static PyType_Spec holder_spec = {
    "flinkray.kernels._native.KeyHolder", sizeof(Holder), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, holder_slots};

/* --- handles of state ------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    PyObject *context;      /* a Holder */
    PyObject *entries;      /* the dictionary of the table */
    PyObject *immutable;    /* types whose values need no copy */
    PyObject *changed;      /* the set of changed places; None while changes are not noted */
    PyObject *first_change; /* notes the first change of a place */
    PyObject *slow;         /* the handle in Python, which does all that is unusual */
    PyObject *reduce;       /* the user's function of reducing state */
    PyObject *read;         /* an immutable type */
    PyObject *written;      /* an immutable type other than that of None */
} Handle;

/* The fields of a handle, which are all references. */
static PyObject **fields_of(Handle *handle, int *number)
{
    *number = (sizeof(Handle) - offsetof(Handle, context)) / sizeof(PyObject *);
    return &handle->context;
}

static int traverse_handle(PyObject *self, visitproc visit, void *arg)
{
    int number;
    PyObject **fields = fields_of((Handle *)self, &number);
    Py_VISIT(Py_TYPE(self));
    for (int place = 0; place < number; place++)
        Py_VISIT(fields[place]);
    return 0;
}

static int clear_handle(PyObject *self)
{
    int number;
    PyObject **fields = fields_of((Handle *)self, &number);
    for (int place = 0; place < number; place++)
        Py_CLEAR(fields[place]);
    return 0;
}

static void deallocate_handle(PyObject *self)
{
    deallocate(self, clear_handle);
}

/* bind(type of holders, immutable types, context, entries, first_change, slow handle, reduce) */
static PyObject *bind(PyObject *self, PyObject *arguments)
{
    Handle *handle = (Handle *)self;
    PyObject *type, *immutable, *context, *entries, *first_change, *slow, *reduce;
    if (!PyArg_ParseTuple(arguments, "OO!OO!OOO", &type, &PySet_Type, &immutable, &context,
                          &PyDict_Type, &entries, &first_change, &slow, &reduce))
        return NULL;
    int is_holder = PyObject_IsInstance(context, type);
    if (is_holder < 0)
        return NULL;
    if (!is_holder || !PyDict_CheckExact(entries)) {
        PyErr_SetString(PyExc_TypeError, "a handle needs a KeyHolder and a dictionary");
        return NULL;
    }
    replace(&handle->immutable, immutable);
    replace(&handle->entries, entries);
    replace(&handle->first_change, first_change);
    replace(&handle->slow, slow);
    replace(&handle->reduce, reduce);
    replace(&handle->changed, Py_None);
    replace(&handle->context, context);
    Py_RETURN_NONE;
}

static PyObject *follow(PyObject *self, PyObject *changed)
{
    if (changed != Py_None && !PySet_Check(changed)) {
        PyErr_SetString(PyExc_TypeError, "changed places are a set or None");
        return NULL;
    }
    replace(&((Handle *)self)->changed, changed);
    Py_RETURN_NONE;
}

/* Returns a new reference to the present key, or NULL with an exception set. */
static PyObject *present_key(Handle *handle)
{
    if (handle->context == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the handle is not bound to a table");
        return NULL;
    }
    PyObject *key = ((Holder *)handle->context)->key;
    if (key == NULL)
        PyErr_SetString(PyExc_AttributeError, "key");
    return Py_XNewRef(key);
}

/* Returns a new reference to the value at a key; NULL without an exception if there is none. */
static PyObject *entry_of(Handle *handle, PyObject *key)
{
    PyObject *entries = Py_NewRef(handle->entries);
    PyObject *value = Py_XNewRef(PyDict_GetItemWithError(entries, key));
    Py_DECREF(entries);
    return value;
}

static PyObject *value_or_slow(PyObject *self, const char *method)
{
    Handle *handle = (Handle *)self;
    PyObject *key = present_key(handle);
    if (key == NULL)
        return NULL;
    PyObject *value = entry_of(handle, key);
    Py_DECREF(key);
    if (value != NULL) {
        PyObject *kind = (PyObject *)Py_TYPE(value);
        if (kind == handle->read)
            return value;
        int found = PySet_Contains(handle->immutable, kind);
        if (found > 0) {
            replace(&handle->read, kind);
            return value;
        }
        Py_DECREF(value);
        if (found < 0)
            return NULL;
    } else if (PyErr_Occurred())
        return NULL;
    PyObject *slow = Py_NewRef(handle->slow);
    value = PyObject_CallMethod(slow, method, NULL);
    Py_DECREF(slow);
    return value;
}

static PyObject *get_value(PyObject *self, PyObject *nothing)
{
    return value_or_slow(self, "value");
}

static PyObject *get_reduced(PyObject *self, PyObject *nothing)
{
    return value_or_slow(self, "get");
}

/* Notes the change of a place if it is the first one since the last capture. *changed*: the set of
   changed places, or None if changes are not noted. */
static bool note_change(PyObject *changed, PyObject *first_change, PyObject *place)
{
    if (changed == Py_None)
        return true;
    Py_INCREF(changed); /* it may be replaced meanwhile, as may the function */
    Py_INCREF(first_change);
    int is_known = PySet_Contains(changed, place);
    PyObject *noted = NULL;
    if (is_known == 0)
        noted = PyObject_CallFunctionObjArgs(first_change, place, NULL);
    Py_DECREF(changed);
    Py_DECREF(first_change);
    Py_XDECREF(noted);
    return is_known > 0 || noted != NULL;
}

/* Writes a value to the table. Returns 0 or -1. */
static int write_entry(Handle *handle, PyObject *key, PyObject *value)
{
    if (!note_change(handle->changed, handle->first_change, key))
        return -1;
    PyObject *entries = Py_NewRef(handle->entries);
    int failed = PyDict_SetItem(entries, key, value);
    Py_DECREF(entries);
    return failed;
}

/* Calls a method of the slow handle with a value. */
static PyObject *slowly(Handle *handle, const char *method, PyObject *value)
{
    PyObject *slow = Py_NewRef(handle->slow);
    PyObject *result = PyObject_CallMethod(slow, method, "(O)", value);
    Py_DECREF(slow);
    return result;
}

static PyObject *update(PyObject *self, PyObject *value)
{
    Handle *handle = (Handle *)self;
    PyObject *key = present_key(handle);
    if (key == NULL)
        return NULL;
    PyObject *kind = (PyObject *)Py_TYPE(value), *result = NULL;
    if (kind == handle->written) {
        if (write_entry(handle, key, value) == 0)
            result = Py_NewRef(Py_None);
    } else if ((result = slowly(handle, "update", value)) != NULL && value != Py_None) {
        int found = PySet_Contains(handle->immutable, kind);
        if (found > 0)
            replace(&handle->written, kind);
        else if (found < 0)
            Py_CLEAR(result);
    }
    Py_DECREF(key);
    return result;
}

static PyObject *add(PyObject *self, PyObject *value)
{
    Handle *handle = (Handle *)self;
    PyObject *key = present_key(handle), *result = NULL;
    if (key == NULL)
        return NULL;
    PyObject *current = value == Py_None ? NULL : entry_of(handle, key);
    int is_usual = current != NULL && PyErr_Occurred() == NULL;
    if (is_usual)
        is_usual = PySet_Contains(handle->immutable, (PyObject *)Py_TYPE(current));
    if (is_usual > 0)
        is_usual = is_of(handle->immutable, value, 0);
    if (is_usual > 0) {
        PyObject *reduce = Py_NewRef(handle->reduce);
        PyObject *reduced = PyObject_CallFunctionObjArgs(reduce, current, value, NULL);
        Py_DECREF(reduce);
        if (reduced != NULL) {
            if (write_entry(handle, key, reduced) == 0)
                result = Py_NewRef(Py_None);
            Py_DECREF(reduced);
        }
    } else if (PyErr_Occurred() == NULL)
        result = slowly(handle, "add", value);
    Py_XDECREF(current);
    Py_DECREF(key);
    return result;
}

#define COMMON {"_bind", bind, METH_VARARGS, NULL}, {"_follow", follow, METH_O, NULL}

static PyMethodDef value_methods[] = {
    COMMON,
    {"value", get_value, METH_NOARGS, "Return the value of the current key."},
    {"update", update, METH_O, "Replace the value of the current key; None removes it."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef reducing_methods[] = {
    COMMON,
    {"get", get_reduced, METH_NOARGS, "Return the reduced value of the current key."},
    {"add", add, METH_O, "Reduce a value into the value of the current key."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot value_slots[] = {
    {Py_tp_traverse, traverse_handle}, {Py_tp_clear, clear_handle},
    {Py_tp_dealloc, deallocate_handle}, {Py_tp_methods, value_methods}, {0, NULL},
};

static PyType_Slot reducing_slots[] = {
    {Py_tp_traverse, traverse_handle}, {Py_tp_clear, clear_handle},
    {Py_tp_dealloc, deallocate_handle}, {Py_tp_methods, reducing_methods}, {0, NULL},
};

static PyType_Spec value_spec = {
    "flinkray.kernels._native.ValueHandle", sizeof(Handle), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, value_slots};

static PyType_Spec reducing_spec = {
    "flinkray.kernels._native.ReducingHandle", sizeof(Handle), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, reducing_slots};

/* --- the loop around a user's function ------------------------------------------------------- */

typedef struct {
    PyObject *put_out;   /* takes a portion of results and their times; returns the next size */
    PyObject *own;       /* copies a result that could still be changed */
    PyObject *refuse;    /* raises an error if results cannot be iterated over */
    PyObject *immutable; /* types whose values need no copy */
    PyObject *context;   /* what the function learns about the record, or None */
    PyObject *stamp_name; /* "record_timestamp" */
    PyObject *values, *stamps; /* the results of the present portion; stamps: NULL without times */
    Py_ssize_t limit;    /* the size of the present portion */
} Collecting;

/* Sets the timestamp of the record in the context. */
static bool set_stamp(Collecting *to, PyObject *stamp)
{
    return to->context == Py_None || PyObject_SetAttr(to->context, to->stamp_name, stamp) == 0;
}

static bool new_portion(Collecting *to)
{
    PyObject *values = PyList_New(0), *stamps = to->stamps == NULL ? NULL : PyList_New(0);
    if (values == NULL || (to->stamps != NULL && stamps == NULL)) {
        Py_XDECREF(values);
        return false;
    }
    Py_XDECREF(to->values);
    Py_XDECREF(to->stamps);
    to->values = values;
    to->stamps = stamps;
    return true;
}

static bool put_out(Collecting *to)
{
    PyObject *stamps = to->stamps == NULL ? Py_None : to->stamps;
    PyObject *limit = PyObject_CallFunctionObjArgs(to->put_out, to->values, stamps, NULL);
    if (limit == NULL)
        return false;
    to->limit = PyLong_AsSsize_t(limit);
    Py_DECREF(limit);
    if (to->limit == -1 && PyErr_Occurred())
        return false;
    return new_portion(to) && (to->stamps != NULL || set_stamp(to, Py_None));
}

/* Adds a result, whose reference it takes over. */
static bool add_result(Collecting *to, PyObject *result, PyObject *stamp)
{
    int found = is_of(to->immutable, result, 0);
    if (found == 0) {
        PyObject *copy = PyObject_CallFunctionObjArgs(to->own, result, NULL);
        Py_DECREF(result);
        if ((result = copy) == NULL)
            return false;
    }
    bool done = found >= 0 && PyList_Append(to->values, result) == 0 &&
                (to->stamps == NULL || PyList_Append(to->stamps, stamp) == 0);
    Py_DECREF(result);
    return done && (PyList_Size(to->values) < to->limit || put_out(to));
}

static bool add_results(Collecting *to, PyObject *results, PyObject *stamp)
{
    if (results == Py_None)
        return true;
    PyObject *iterator = PyObject_GetIter(results), *result;
    if (iterator == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyObject *type, *value, *traceback;
            PyErr_Fetch(&type, &value, &traceback);
            PyObject *passed = PyObject_CallFunctionObjArgs(to->refuse, results, NULL);
            if (passed != NULL)
                PyErr_Restore(type, value, traceback);
            else {
                Py_XDECREF(type);
                Py_XDECREF(value);
                Py_XDECREF(traceback);
            }
            Py_XDECREF(passed);
        }
        return false;
    }
    bool done = true;
    while (done && (result = PyIter_Next(iterator)) != NULL)
        done = add_result(to, result, stamp);
    Py_DECREF(iterator);
    return done && PyErr_Occurred() == NULL;
}

/* Returns an iterator over *things*, or NULL without an exception if they are None. */
static PyObject *iterator_of(PyObject *things)
{
    return things == Py_None ? NULL : PyObject_GetIter(things);
}

/* process_each(process, records, context, keys, key_context, times, put_out, own, refuse, immutable,
   limit) returns the last portion: (results, times). */
static PyObject *process_each(PyObject *module, PyObject *arguments)
{
    PyObject *process, *records, *all_keys, *key_context, *all_times;
    Collecting to = {.values = NULL, .stamps = NULL, .stamp_name = NULL};
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOOO!n", &process, &records, &to.context, &all_keys,
                          &key_context, &all_times, &to.put_out, &to.own, &to.refuse, &PySet_Type,
                          &to.immutable, &to.limit))
        return NULL;
    PyObject *type = PyObject_GetAttrString(module, "KeyHolder"), *last = NULL;
    PyObject *keys = NULL, *times = NULL, *value = NULL, *key = NULL, *stamp = NULL;
    int is_holder = type == NULL ? -1 : PyObject_IsInstance(key_context, type);
    if (is_holder == 0 && all_keys != Py_None)
        PyErr_SetString(PyExc_TypeError, "keys need a KeyHolder");
    else if (is_holder >= 0 && (to.stamp_name = PyUnicode_FromString("record_timestamp")) != NULL) {
        keys = iterator_of(all_keys);
        times = iterator_of(all_times);
    }
    to.stamps = Py_XNewRef(times); /* new_portion puts a list in its place */
    records = PyErr_Occurred() == NULL ? PyObject_GetIter(records) : NULL;
    bool done = records != NULL && new_portion(&to);
    done = done && (times != NULL || set_stamp(&to, Py_None)); /* without times, seldom set */
    while (done && (value = PyIter_Next(records)) != NULL) {
        if (keys != NULL && (key = PyIter_Next(keys)) == NULL)
            break;
        if (key != NULL)
            replace(&((Holder *)key_context)->key, key);
        if (times != NULL && (stamp = PyIter_Next(times)) == NULL)
            break;
        if (stamp == NULL || set_stamp(&to, stamp)) {
            PyObject *results = PyObject_CallFunctionObjArgs(process, value, to.context, NULL);
            done = results != NULL && add_results(&to, results, stamp);
            Py_XDECREF(results);
        } else
            done = false;
        Py_CLEAR(value);
        Py_CLEAR(key);
        Py_CLEAR(stamp);
    }
    if (PyErr_Occurred() == NULL) /* the records, keys or times have ended */
        last = PyTuple_Pack(2, to.values, to.stamps == NULL ? Py_None : to.stamps);
    Py_XDECREF(value);
    Py_XDECREF(key);
    Py_XDECREF(stamp);
    Py_XDECREF(records);
    Py_XDECREF(keys);
    Py_XDECREF(times);
    Py_XDECREF(type);
    Py_XDECREF(to.stamp_name);
    Py_XDECREF(to.values);
    Py_XDECREF(to.stamps);
    return last;
}

/* --- contents of windows --------------------------------------------------------------------- */

typedef struct Folding Folding;

struct Folding {
    bool (*add)(Folding *into, PyObject *pane, PyObject *key, PyObject *value);
    PyObject *fold, *begin;
    long long first, end; /* the times of the present pane: from first up to but not including end */
    PyObject *panes;      /* a tuple: what belongs to each of its windows; or None */
};

static bool fold_into(Folding *into, PyObject *pane, PyObject *key, PyObject *value);

/* Returns whether a tuple has what belongs to one window: (window, dictionary), or for lists also the
   dictionary of timers, the set of changed places or None, and the function that notes a change. */
static bool is_pane(Folding *into, PyObject *pane)
{
    int parts = into->add == fold_into ? 2 : 5;
    return PyTuple_Check(pane) && PyTuple_Size(pane) == parts &&
           PyDict_Check(PyTuple_GetItem(pane, 1)) &&
           (parts == 2 || PyDict_Check(PyTuple_GetItem(pane, 2)));
}

/* Asks for the pane that contains a time. */
static bool find_pane(Folding *into, PyObject *pane_of, PyObject *time)
{
    PyObject *found = PyObject_CallFunctionObjArgs(pane_of, time, NULL), *panes;
    if (found == NULL)
        return false;
    bool is_good = PyTuple_Check(found) &&
                   PyArg_ParseTuple(found, "LLO", &into->first, &into->end, &panes);
    if (is_good) {
        panes = panes == Py_None ? Py_NewRef(panes) : PySequence_Tuple(panes);
        Py_XDECREF(into->panes);
        into->panes = panes;
        is_good = panes != NULL;
        for (Py_ssize_t which = 0; is_good && panes != Py_None && which < PyTuple_Size(panes); which++)
            is_good = is_pane(into, PyTuple_GetItem(panes, which));
    }
    if (!is_good && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "this is no pane");
    Py_DECREF(found);
    return is_good;
}

/* Adds a record to what one window holds for its key. */
static bool fold_into(Folding *into, PyObject *pane, PyObject *key, PyObject *value)
{
    PyObject *window = PyTuple_GetItem(pane, 0), *entries = PyTuple_GetItem(pane, 1);
    PyObject *before = Py_XNewRef(PyDict_GetItemWithError(entries, key)), *after;
    if (before == NULL && PyErr_Occurred())
        return false;
    if (before == NULL)
        after = PyObject_CallFunctionObjArgs(into->begin, key, window, value, NULL);
    else
        after = PyObject_CallFunctionObjArgs(into->fold, value, before, NULL);
    bool done = after != NULL && PyDict_SetItem(entries, key, after) == 0;
    Py_XDECREF(before);
    Py_XDECREF(after);
    return done;
}

/* Adds a record to the list at its key and window. A new list goes into the dictionary of the table,
   and its place into the timers at the end of the window. */
static bool append_to(Folding *into, PyObject *pane, PyObject *key, PyObject *value)
{
    PyObject *window = PyTuple_GetItem(pane, 0), *entries = PyTuple_GetItem(pane, 1);
    PyObject *timers = PyTuple_GetItem(pane, 2), *changed = PyTuple_GetItem(pane, 3);
    PyObject *place = PyTuple_Pack(2, key, window), *values = NULL;
    bool done = false;
    if (place == NULL || !note_change(changed, PyTuple_GetItem(pane, 4), place))
        ;
    else if ((values = Py_XNewRef(PyDict_GetItemWithError(entries, place))) != NULL) {
        if (PyList_CheckExact(values))
            done = PyList_Append(values, value) == 0;
        else
            PyErr_SetString(PyExc_TypeError, "a place of the table has no list");
    } else if (!PyErr_Occurred() && (values = PyList_New(0)) != NULL)
        done = PyList_Append(values, value) == 0 && PyDict_SetItem(entries, place, values) == 0 &&
               PyDict_SetItem(timers, place, Py_None) == 0;
    Py_XDECREF(values);
    Py_XDECREF(place);
    return done;
}

static PyObject *add_to_panes(PyObject *arguments, Folding into)
{
    PyObject *records, *all_keys, *all_times, *pane_of, *add_singly;
    if (!(into.add == fold_into
              ? PyArg_ParseTuple(arguments, "OOOOOOO", &records, &all_keys, &all_times, &pane_of,
                                 &add_singly, &into.fold, &into.begin)
              : PyArg_ParseTuple(arguments, "OOOOO", &records, &all_keys, &all_times, &pane_of,
                                 &add_singly)))
        return NULL;
    PyObject *keys = PyObject_GetIter(all_keys), *times = NULL;
    PyObject *value = NULL, *key = NULL, *stamp = NULL;
    if (keys != NULL)
        times = PyObject_GetIter(all_times);
    records = times == NULL ? NULL : PyObject_GetIter(records);
    bool done = records != NULL;
    for (Py_ssize_t place = 0; done && (value = PyIter_Next(records)) != NULL; place++) {
        if ((key = PyIter_Next(keys)) == NULL || (stamp = PyIter_Next(times)) == NULL)
            break;
        long long time = PyLong_AsLongLong(stamp);
        done = !(time == -1 && PyErr_Occurred());
        if (done && !(into.first <= time && time < into.end))
            done = find_pane(&into, pane_of, stamp);
        PyObject *panes = done ? Py_NewRef(into.panes) : NULL;
        if (panes == Py_None) {
            PyObject *nothing = PyObject_CallFunction(add_singly, "nOOO", place, value, key, stamp);
            done = nothing != NULL;
            Py_XDECREF(nothing);
        } else
            for (Py_ssize_t which = 0; done && which < PyTuple_Size(panes); which++)
                done = into.add(&into, PyTuple_GetItem(panes, which), key, value);
        Py_XDECREF(panes);
        Py_CLEAR(value);
        Py_CLEAR(key);
        Py_CLEAR(stamp);
    }
    Py_XDECREF(value);
    Py_XDECREF(key);
    Py_XDECREF(stamp);
    Py_XDECREF(records);
    Py_XDECREF(keys);
    Py_XDECREF(times);
    Py_XDECREF(into.panes);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* fold_panes(records, keys, times, pane_of, add_singly, fold, begin) */
static PyObject *fold_panes(PyObject *module, PyObject *arguments)
{
    return add_to_panes(arguments, (Folding){.add = fold_into});
}

/* append_panes(records, keys, times, pane_of, add_singly) */
static PyObject *append_panes(PyObject *module, PyObject *arguments)
{
    return add_to_panes(arguments, (Folding){.add = append_to});
}

static PyMethodDef functions[] = {
    {"append_panes", append_panes, METH_VARARGS, NULL},
    {"fold_panes", fold_panes, METH_VARARGS, NULL},
    {"are_of", are_of, METH_VARARGS, NULL},
    {"owner", owner, METH_VARARGS, NULL},
    {"process_each", process_each, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_rows(PyObject *module)
{
    static const struct {
        const char *name;
        PyType_Spec *spec;
    } types[] = {
        {"KeyHolder", &holder_spec},
        {"ValueHandle", &value_spec},
        {"ReducingHandle", &reducing_spec},
    };
    for (size_t place = 0; place < sizeof(types) / sizeof(types[0]); place++) {
        PyObject *type = PyType_FromSpec(types[place].spec);
        int failed = type == NULL ? -1 : PyModule_AddObjectRef(module, types[place].name, type);
        Py_XDECREF(type);
        if (failed < 0)
            return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
