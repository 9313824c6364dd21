// An entry of a functools cache, as a step looks it up.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lazytrace {

namespace py = pybind11;

// A float that is no nan, or an int of at most 64 bits.
bool is_plain_number(PyObject* value);
constexpr int kDeepestEntry = 6;

// What a step cannot give: others may change it, or which object it is shows.
struct NotGiven : std::runtime_error {
  NotGiven() : std::runtime_error("not given") {}
};

// Rebuilds an entry, leaf by leaf.
class Rebuilding {
 public:
  virtual ~Rebuilding() = default;
  py::object of(PyObject* value, int depth = 0);

 protected:
  virtual py::object leaf(PyObject* value) = 0;
  virtual py::object made(py::object copy, PyObject*) { return copy; }

 private:
  py::object of_items(PyObject* value, int depth);
  py::object of_dict(PyObject* value, int depth);

  std::vector<PyObject*> met_;  // lists and dicts
};

struct Entry {
  py::object key;
  PyObject* result = nullptr;  // borrowed
};
// What the step gives where there is no entry, and where there is one that it cannot give: another way, as
// the function does not run.
inline PyObject* const kNoEntry = Py_Ellipsis;
inline PyObject* const kNotGiven = Py_NotImplemented;
py::object given(const Entry& entry);

// `args`: of the step: the cache, the form, and the leaves. The form is the structure of the arguments: a dot
// for each leaf, tuples in parentheses. All need the GIL, and run no Python code of the user.
Entry entry_of(PyObject* args);
// What the step calls.
PyObject* look_up_entry(PyObject*, PyObject* args);

// A list, dict or tuple as a text of its structure, and its leaves, which cannot change: as arguments of a
// step.
class TakingApart {
 public:
  // `lasts`: whether a list, dict or tuple in it is there before and behind the call, and a leaf itself.
  explicit TakingApart(std::function<bool(PyObject*)> lasts) : lasts_(std::move(lasts)) {}
  // Throws NotGiven where another could not be made of them.
  void add(PyObject* value, int depth = 0);
  const std::string& form() const { return form_; }
  const py::list& leaves() const { return leaves_; }
  // Its lists, dicts and tuples, in order.
  const std::vector<PyObject*>& containers() const { return containers_; }

 private:
  std::function<bool(PyObject*)> lasts_;
  std::string form_;
  py::list leaves_;
  std::vector<PyObject*> containers_;
};
// What the steps of a call without an entry call. `args`: the cache; behind it, where the function has given
// something, the forms of the arguments and of that, and the leaves of both.
PyObject* begin_entry(PyObject*, PyObject* args);
PyObject* keep_entry(PyObject*, PyObject* args);

}  // namespace lazytrace
