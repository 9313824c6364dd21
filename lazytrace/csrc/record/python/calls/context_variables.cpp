#include "record/python/calls/context_variables.h"

#include <algorithm>

#include "cpython/context_value.h"
#include "cpython/values.h"
#include "signature/ambient.h"
#include "support/reasons.h"
#include "torch/frame_evaluator.h"

namespace lazytrace {

namespace {
bool is_same(PyObject* a, PyObject* b) {
  return a == b || (a && b && is_immutable(a) && is_immutable(b) && same_immutable(a, b));
}
}  // namespace

void ContextVariables::call(const std::string& name, PyObject* variable, PyObject* argument) {
  // Where a replay runs the block, nothing is set.
  if (name != "get" || set_.count(variable)) recorder_->refuse_in_block();
  if (name == "set") {
    // The token that it gives back shows the value of before.
    if (set_.count(variable)) return;
    read(variable, true);
    set_.emplace(variable, value_of_context(variable, true));
  } else if (name == "reset") {
    // A token does so once.
    if (!set_.count(variable) || (argument && provenance_->owner(argument) >= 0))
      recorder_->fail("sets a context variable");
  } else if (name != "get") {
    recorder_->fail("calls ." + name + "() of a ContextVar");
  } else if (!set_.count(variable)) {
    read(variable, argument);
  }
}

// `set` to what it was by whoever asked for it is a way of putting it back, too.
bool ContextVariables::sets_any() const {
  return std::any_of(set_.begin(), set_.end(), [](const auto& one) {
    return !is_same(value_of_context(one.first, true).ptr(), one.second.ptr());
  });
}

bool ContextVariables::was(PyObject* variable, PyObject* value) const {
  auto before = set_.find(variable);
  return before != set_.end() && is_same(before->second.ptr(), value);
}

void ContextVariables::read(PyObject* variable, bool has_default) {
  int node = provenance_->owner(variable);
  if (node < 0) return recorder_->fail("reads a context variable that cannot be reached again");
  py::object held = value_of_context(variable, has_default);
  provenance_->read_child(node, Access::Context, nullptr, has_default ? 0 : -1, held.ptr());
}

void ContextVariables::set_frame_evaluator(PyObject* value) {
  if (value != Py_None || !frame_evaluator().is_none())
    return recorder_->fail("has torch's compiler watch its frames");
  provenance_->read_child(-1, Access::FrameEvaluator, nullptr, -1, Py_None);
}

bool ContextVariables::read_switch(size_t row) {
  if (found_.has(row)) return true;
  int32_t now = switch_now(row);
  if (now == kNoSwitchValue) return false;
  found_.put(row, now);
  provenance_->read_child(-1, Access::Switch, nullptr, static_cast<Py_ssize_t>(row), py::int_(now).ptr());
  return true;
}

void ContextVariables::ask_switch(const std::string& name, PyObject* const* args, Py_ssize_t count) {
  if (reads_ambient(name.substr(name.rfind('.') + 1))) return;  // the key holds it
  int row = switch_of(name, false, args, count);
  if (row < 0 || !read_switch(static_cast<size_t>(row)))
    recorder_->fail("calls " + name + "(), which lazytrace cannot see into");
}

// What somebody else sets meanwhile is no doing of the function's, so what it is now is never asked.
void ContextVariables::set_switch(const std::string& name, PyObject* const* args, Py_ssize_t count) {
  recorder_->refuse_in_block();
  int row = switch_of(name, true, args, count);
  int32_t value = row < 0 ? kNoSwitchValue : switch_value(static_cast<size_t>(row), args[count - 1]);
  if (value == kNoSwitchValue || !read_switch(static_cast<size_t>(row)))
    return recorder_->fail("calls " + name + "(), which lazytrace cannot see into");
  Switches& set = recorder_->switches();
  value == found_.value(static_cast<size_t>(row)) ? set.drop(static_cast<size_t>(row))
                                                  : set.put(static_cast<size_t>(row), value);
}

void ContextVariables::finish() {
  if (sets_any()) recorder_->fail("sets a context variable");
  if (recorder_->switches().any()) recorder_->fail(say(reason::LeavesModes));
}

}  // namespace lazytrace
