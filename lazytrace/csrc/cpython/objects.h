// What kind of Python object this is, asked of the C structures so that no user code runs.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

namespace lazytrace {

// isinstance(v, torch.Tensor) by type alone: asking Python would run a __getattribute__ of the user's.
bool is_tensor(PyObject* v);
// torch.nn.Parameter or a subclass, likewise.
PyTypeObject* parameter_class();
bool is_parameter_class(PyTypeObject* type);
bool is_parameter(PyObject* v);

// All need the GIL. "New reference" results are NULL with an exception set on failure.
bool is_numpy_scalar(PyObject* v);
bool is_numpy_array(PyObject* v);
// One of those that numpy has one object each of: of numbers, in the order of bytes of this machine.
bool is_builtin_dtype(PyObject* v);
bool is_plain_array(PyObject* v);           // of no class of its own
std::string numpy_bytes(PyObject* scalar);  // its dtype and its value
bool is_enum_member(PyObject* v);
bool is_struct_sequence(PyTypeObject* type);
bool is_named_tuple(PyObject* v);  // or a struct sequence: a tuple with names and nothing beside its items

bool is_free_builtin(PyObject* v);         // a C function that is bound to no object but its module or class
bool is_python_class(PyTypeObject* type);  // made by a class statement
// The name of a class that C code has made; "" of others, which anybody may name.
const char* c_name(PyTypeObject* type);
bool is_torch_class(PyTypeObject* type);  // of torch's own, by the name of its module
bool is_torch_module(PyObject* v);        // an instance of torch.nn.Module
// The nearest base that is written in C.
PyTypeObject* c_base(PyTypeObject* type);
bool has_c_layout_of(PyObject* v, PyTypeObject* type);
bool is_ordered_dict_type(PyTypeObject* type);

bool is_default_dict(PyObject* v);
bool is_deque(PyObject* v);
bool is_alias_of_types(PyObject* v);  // list[int], int | str
// How many entries a list or a deque of Python's own class has; -1 of anything else.
Py_ssize_t size_of_list(PyObject* v);
// One of its entries, counted from its begin, or from its end where `index` is negative: a new reference, or
// null where it is shorter.
PyObject* entry_of_list(PyObject* v, Py_ssize_t index);

// An instance whose whole state is its slots, its __dict__ and the items of a dict or list base.
bool is_rebuildable(PyObject* v);
// New dict: attribute -> value. `single`: whether each name stands for one place, as a slot and the __dict__,
// or slots of two classes, may have the same.
PyObject* instance_state(PyObject* v, bool* single = nullptr);
int set_instance_state(PyObject* v, PyObject* state);
PyObject* new_instance(PyTypeObject* type);  // made by the C base alone: __new__ and __init__ do not run
PyObject* new_named_tuple(PyTypeObject* type, PyObject* items);
PyObject* ordered_items(PyObject* mapping);  // new dict in iteration order
int fill_mapping(PyObject* mapping, PyObject* items);

// "torch.nn.modules.linear.Linear", best effort.
std::string type_name(PyObject* v);
// Whether an object of a class with a __dict__ has anything in it. Makes none where there is none yet.
bool has_attributes(PyObject* v);
// Gives it the __dict__ that instances of its class get when they are asked for one.
void make_namespace(PyObject* v);
// Whether all keys of a dict are of type str itself, so that it compares none with Python code.
bool has_plain_keys(PyObject* dict);
// Those of its keys, if they are not plain, that a key of this hash is compared with. Borrowed.
std::vector<PyObject*> keys_of_hash(PyObject* dict, Py_hash_t hash);
// The same of the members of a set.
std::vector<PyObject*> members_of_hash(PyObject* set, Py_hash_t hash);
// Whether no code of the user's hashes or compares it, or any key of a dict.
bool is_silent_key(PyObject* key);
bool has_silent_keys(PyObject* dict);
// Whether this thread is in the handler of an exception.
bool handles_exception();
std::string short_repr(PyObject* v);
// The value of a str, "" for anything else.
std::string text_of(PyObject* v);
// Whether two texts are equal, either of which may have been made at run time.
bool is_text(PyObject* v, PyObject* other);

// A torch.Generator for a device, as its class makes it: a new reference, or null with an exception set.
PyObject* new_generator(PyObject* device);
// A new instance of `random.Random`, or of a class in C, that is called without arguments. No method that
// somebody may have put there runs.
PyObject* make_anew(PyTypeObject* type);
// Whether it is a torch.Generator.
bool is_random_generator(PyObject* v);

// Of a tensor, or of an object without an __eq__ of its own: what a dict has under just this object,
// borrowed; null where it has nothing. Runs no Python code.
bool is_key_by_identity(PyObject* object);
PyObject* entry_of(PyObject* dict, PyObject* object);
// Goes on to the next entry of a dict or a set, in the order of its table, from `at`, which begins at 0; what
// is no dict gives no value. False behind the last one, and for anything else. Borrowed.
bool next_entry(PyObject* container, Py_ssize_t* at, PyObject** key, PyObject** value);
// The key at that place of a dict or a set, in the order of its table, and what a dict has there; null where
// there is none. Borrowed.
PyObject* key_at(PyObject* container, Py_ssize_t place, PyObject** value = nullptr);

}  // namespace lazytrace
