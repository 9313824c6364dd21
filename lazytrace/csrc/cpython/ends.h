// Whether it shows when an object goes.
#pragma once

#include <c10/util/FunctionRef.h>

#include <vector>

#include "cpython/objects.h"

namespace lazytrace {

// Whether its class has a destructor in Python, and nothing else is told of its end.
bool has_destructor(PyObject* object);
// The objects that an object holds, as the garbage collector sees them: the list behind an iterator, the
// iterators behind a zip, the dict behind a view. Borrowed.
std::vector<PyObject*> parts_of(PyObject* object);
// Those that may go with it: of a function that is its closure, and not its globals.
std::vector<PyObject*> goes_with(PyObject* object);

// Whether Python code runs where the object goes, or where one goes that it holds: then nobody may hold it
// for longer than the program does. Needs the GIL; runs no Python code.
bool shows_its_end(PyObject* object);
// Whether code of its own runs where this object goes now, whatever it holds. Of a generator: it waits where
// code would run at its end.
bool runs_code_at_its_end(PyObject* object);
// The first object whose code would run if the one reference that keeps `object` went; null where none would.
// Needs the GIL; runs no Python code.
PyObject* ends_with(PyObject* object);
// Whether it is a generator, or a coroutine of either kind.
bool is_generator(PyObject* object);
// A generator that waits where code of its own would run at its end.
bool waits_to_end(PyObject* object);
// An iterator, or a tuple of such, which one of C keeps.
bool goes_through(PyObject* object);

// Whether the object is wanted, or one that it holds. Looks two objects deep, or eight lists, tuples and
// dicts. Needs the GIL; runs no Python code.
bool leads_to(PyObject* object, c10::function_ref<bool(PyObject*)> wanted, int depth = 0);

}  // namespace lazytrace
