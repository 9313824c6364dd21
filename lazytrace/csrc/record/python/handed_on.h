// What the call has made and handed to code of a step, which may keep it.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program/program.h"

namespace lazytrace {

namespace py = pybind11;

// The objects that one step is given, and that a replay makes again of their parts. Holds them, as its code
// may take one out of another. Needs the GIL.
class HandedParts {
 public:
  void add(PyObject* part);
  // Before the code of the step runs, and whether more hold one of them now. `is_ours`: of one that we hold
  // since. `by_result`: what the result holds, as often.
  void count_holders();
  bool are_kept(const std::function<bool(PyObject*)>& is_ours, const std::vector<PyObject*>& by_result) const;
  // Others stand in their places.
  void exchange(const std::function<PyObject*(PyObject*)>& by);
  const std::vector<std::pair<py::object, Py_ssize_t>>& all() const { return parts_; }

 private:
  std::vector<std::pair<py::object, Py_ssize_t>> parts_;  // with how often it was held
};

// Those that were kept, as code that comes to them later would find them. In a replay that code has objects
// of its own, which are what they were when the step was given them: the call may not have changed them
// since.
//
// Holds them. Needs the GIL.
class HandedOn {
 public:
  // Those that somebody could change, borrowed.
  std::vector<PyObject*> keep(const HandedParts& parts, const std::string& step, const Place& place);
  struct Kept {
    py::object object, content;
    std::string step;
    Place place;
    bool shows = true;  // or it is what a partial holds, and nobody asks for
  };
  // One that has changed since it was handed on, or since renew(); null where there is none.
  const Kept* changed() const;
  // Code of a step has run that was given these, which changes what is kept in a replay, too. One of these
  // that it has changed, though another step keeps it: no replay knows which of the two was changed.
  const Kept* renew(const HandedParts& given);
  // The other is what a step goes on with in the place of this one.
  void exchange(PyObject* own, PyObject* other);
  std::vector<py::object> all() const;
  // Whether a step keeps it, so far.
  bool keeps(PyObject* object) const;
  void clear() { kept_.clear(); }
  // At the end of the call they go when it is due. One that several steps still keep, each of which has
  // another in a replay, is given back. What leaves the call, and lives until then, may be one of them: the
  // step that keeps it, or null.
  std::optional<Kept> let_go();
  const std::string* keeper_of(PyObject* object) const;

 private:
  std::vector<Kept> take_shared();

  std::vector<Kept> kept_;
  std::unordered_map<PyObject*, std::string> keepers_;  // of those that were let go
};

}  // namespace lazytrace
