#include "record/python/within_reach.h"

#include <vector>

#include "cpython/ends.h"
#include "cpython/values.h"
#include "record/python/code_facts.h"

namespace lazytrace {

namespace {
constexpr size_t kMost = 5000;

bool is_a_leaf(PyObject* object) {
  return is_tensor(object) || is_immutable(object) || PyType_Check(object) || PyModule_Check(object);
}
}  // namespace

WithinReach::WithinReach(const void* below, const std::function<bool(PyObject*)>& was_there) {
  Frame f = Frame::current();
  // What comes to the step ends with it: code that stands for C code, and that of logging.
  auto leads_there = [](Frame one) { return code_flags(one.code()) & (kOwn | kStandsIn | kLogging); };
  while (f && f.address() != below && leads_there(f)) f = f.previous();
  for (; f && f.address() != below; f = f.previous())
    for (PyObject** place : f.places(false))
      if (*place) meet(*place, was_there);
}

void WithinReach::meet(PyObject* object, const std::function<bool(PyObject*)>& was_there) {
  std::vector<PyObject*> open{object};
  while (!open.empty() && whole_) {
    PyObject* one = open.back();
    open.pop_back();
    if (!one || is_a_leaf(one) || !met_.insert(one) || was_there(one)) continue;
    whole_ = met_.size() < kMost;
    std::vector<PyObject*> parts = goes_with(one);
    open.insert(open.end(), parts.begin(), parts.end());
    if (PyFunction_Check(one))
      open.insert(open.end(), {PyFunction_GET_DEFAULTS(one), PyFunction_GET_KW_DEFAULTS(one)});
  }
}

}  // namespace lazytrace
