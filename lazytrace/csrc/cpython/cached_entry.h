// An entry of a functools cache, as a step looks it up.
#pragma once

#include <torch/csrc/utils/pybind.h>

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

// As the step gives it: numbers that are no followed ones as texts, by their marks in order.
class Giving : public Rebuilding {
 public:
  static constexpr char kFollowed = '1', kConstant = '0';
  explicit Giving(std::string marks) : marks_(std::move(marks)) {}
  const std::vector<PyObject*>& numbers() const { return numbers_; }

 protected:
  py::object leaf(PyObject* value) override;

 private:
  std::string marks_;
  std::vector<PyObject*> numbers_;
};
// Nothing where a step cannot give it.
py::object given(PyObject* result, const std::string& marks);

struct Entry {
  py::object key;
  PyObject* result = nullptr;  // borrowed
};

// `args`: of the step: the cache, the form, the marks, and the leaves. The form is the structure of the
// arguments: a dot for each leaf, tuples in parentheses. All need the GIL, and run no Python code of the
// user.
Entry entry_of(PyObject* args);
// What the step calls: the entry as it gives it, or an Ellipsis.
PyObject* look_up_entry(PyObject*, PyObject* args);
// What a call that finds the entry does to the cache.
void use_entry(PyObject* args);

}  // namespace lazytrace
