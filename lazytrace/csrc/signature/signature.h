// What identifies a call: the structure of its arguments, what each leaf looks like from outside, and the
// ambient state.
#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "signature/key.h"
#include "signature/seen.h"

namespace lazytrace {

namespace py = pybind11;

// What a call passes, as PEP 590 has it: borrowed from the caller, who keeps it alive during the call.
struct Passed {
  PyObject* const* positional = nullptr;
  Py_ssize_t count = 0;
  PyObject* names = nullptr;  // tuple of the keywords, or null
  PyObject* const* values = nullptr;

  Py_ssize_t named() const { return names ? PyTuple_GET_SIZE(names) : 0; }
};

// One call taken apart. Borrows from the arguments: valid while they live. What lies in a list or a dict,
// which may let it go during the call, is held. Needs the GIL.
class Call {
 public:
  Call() = default;
  ~Call() { clear(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Key key;
  // Sizes and strides of the tensors, in order, and ints, floats and other constants: what the key ends with.
  // Of the latter only those that lie in containers are here: nobody can follow them.
  c10::SmallVector<int64_t, 64> measures;
  struct PassedNumber {
    int64_t value;     // of a float its bits
    Py_ssize_t place;  // of a positional argument, or -1 - the place of a keyword; kDefault, kInside
    bool real;
  };
  static constexpr Py_ssize_t kDefault = std::numeric_limits<Py_ssize_t>::max();
  static constexpr Py_ssize_t kInside = kDefault - 1;  // in a container
  c10::SmallVector<PassedNumber, 4> numbers;
  Key constants;  // texts, and tuples of what is immutable
  // Whether what lies in a container is no part of a structure: it is guarded where a recording for all
  // numbers has read it.
  static bool is_value(PyObject* v);
  // The key without these: calls that differ in nothing else have one structure.
  std::string_view structure() const { return key.view().substr(0, structure_); }
  // What may differ between calls that share a trace.
  enum Loose : int { kSizes = 1, kNumbers = 2 };
  // Which of `loose` this call has at all.
  int loose_in(int loose) const {
    return loose & ((measures.empty() ? 0 : kSizes) | (numbers.empty() && !constants.size() ? 0 : kNumbers));
  }
  // The key of all calls that differ in nothing but `loose`, which is what this call has.
  void put_key(int loose, Key* into) const;
  // [0] the function, then what guards may start from: opaque leaves and containers
  std::vector<PyObject*> roots;
  // Of a structure the key holds the contents. Of the others the class: an object is guarded by what a
  // recording reads of it, and so is state, which is a list or dict.
  enum class Root : char { Object, Structure, State };
  std::vector<Root> kinds;
  std::vector<PyObject*> tensors;  // in order of appearance
  // numpy arrays, and the numbers of the tensors that stand for them, of the same memory; held
  std::vector<std::pair<PyObject*, int>> arrays;
  std::string unsupported;  // why this call cannot be keyed, or empty

  // The first reason stands.
  void refuse(const std::string& why) {
    if (unsupported.empty()) unsupported = why;
  }
  const at::Tensor& tensor(size_t i) const { return THPVariable_Unpack(tensors[i]); }
  void hold(PyObject* object) {
    Py_INCREF(object);
    held_.push_back(object);
  }
  // What the call was made with may go when it is due: the function runs with nothing that asks for it. The
  // key stays.
  void let_go() {
    roots.clear();
    kinds.clear();
    tensors.clear();
    arrays.clear();
    // Code that runs as they go may come here again.
    std::vector<PyObject*> held = std::exchange(held_, {});
    for (PyObject* object : held) Py_DECREF(object);
  }
  // For the next call: keeps the memory.
  void clear() {
    key.clear();
    measures.clear();
    numbers.clear();
    constants.clear();
    structure_ = 0;
    roots.clear();
    kinds.clear();
    tensors.clear();
    arrays.clear();
    unsupported.clear();
    storages.clear();
    for (PyObject* object : held_) Py_DECREF(object);
    held_.clear();
  }

 private:
  friend class Signature;
  void end_key() {
    structure_ = key.view().size();
    put_values(0, &key);
  }

  // What may differ comes first: constants are of any length.
  void put_values(int loose, Key* into) const {
    into->put_tag(static_cast<char>(loose));
    if (!(loose & kSizes)) into->put(measures.data(), measures.size() * sizeof(int64_t));
    if (loose & kNumbers) return;
    for (const PassedNumber& number : numbers) into->put(number.value);
    into->put(constants.view().data(), constants.size());
  }
  static void put_text(PyObject* text, Key* into);
  // Whether it has bytes that tell it from all others; otherwise some of them may have been put there.
  // `depth`: of tuples in tuples; what is nested deeper has none.
  static bool put_constant(PyObject* v, Key* into, int depth = 50);

  size_t structure_ = 0;  // bytes
  Seen storages;
  std::vector<PyObject*> held_;
};

// Binds and flattens the calls of one function.
class Signature {
 public:
  // names: positional parameters, then keyword-only ones. A function whose parameters cannot be known has
  // none and both stars. `code`: that the names are of, or None. `unread`: the parameters that it never
  // reads, which are no part of a key while the function has that very code.
  Signature(std::vector<std::string> names, int positional_only, int positional, bool star, bool double_star,
            py::object code, const std::vector<std::string>& unread);

  // `defaults`: the function that has them, or a dict name -> default. False where the arguments do not fit
  // (the function itself says how).
  bool bind(Call* call, PyObject* function, const Passed& passed, PyObject* defaults) const;
  // What a list or dict holds that this parameter gets is no part of a key from now on: it is guarded as far
  // as a recording has read it, as that of any object is. Which one it is makes no difference. "*" stands for
  // all that has no parameter of its own.
  void take_as_state(const std::string& name);
  // The same for what *args and **kwargs have; null where they do not fit.
  std::unique_ptr<Call> bind(py::object function, py::tuple args, py::dict kwargs, py::object defaults) const;

 private:
  struct Flattener;
  PyObject* default_of(size_t parameter, PyObject* defaults) const;
  bool bind_rest(Flattener* flat, const Passed& passed) const;

  std::vector<py::object> names_;
  std::vector<char> unread_, states_;  // by parameter
  bool rest_is_state_ = false;
  int positional_only_, positional_;
  bool star_, double_star_;
  py::object code_;
};

}  // namespace lazytrace
