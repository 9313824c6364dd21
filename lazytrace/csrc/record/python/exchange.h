// Gives Python numbers that are followed in place of sizes, by exchanging operands on the stack of a frame.
#pragma once

#include <Python.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "program/effects.h"
#include "record/operators/recorder.h"
#include "record/python/swaps.h"
#include "record/python/text_exchange.h"

namespace lazytrace {

class Originals;

// Of a recording that follows sizes. Python sees the size of a tensor in few ways: an attribute, a method,
// len(), an index. Before such an instruction its callable or its operand is exchanged for one of
// carriers.py, which gives a carrier. C code that is not known to leave sizes to one operator of its own name
// fixes the sizes of the tensors that it is handed, and the values of the carriers.
//
// Needs the GIL. Borrows the recorder. The idea of operands that are exchanged rather than functions that are
// patched was tried for lazytrace.
class Exchange {
 public:
  explicit Exchange(Recorder* recorder) : recorder_(recorder), texts_(recorder, &swaps_) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Until this is said nothing is exchanged, and sizes are what they are.
  void follow() { follows_ = true; }
  bool follows() const { return follows_; }

  // Around the judgement of an instruction. `told`: a mode is told of what it calls.
  void before(Frame f, const Operation& operation, bool told, PyObject* names);
  // Whether that asks if a mode is told.
  bool asks_modes(Action action) const { return live() || takes_items(action); }
  // Whether the instruction asks a container for a number, which is compared with what is in there.
  bool looks_for_number() const { return looks_for_number_; }
  void after() {
    reading_ = Frame();
    if (!swaps_.empty()) swaps_.make();
    handing_ = Handing::Pins;
  }
  // What the last call into C of this frame did with sizes; at its next instruction, and when it is left.
  void settle_call(Frame f) {
    while (!called_.empty() && called_.back().frame == f) check_call();
  }

  // The instruction that is judged now reads a number in state that is followed. If it puts it on the stack
  // as it is, Python is given one that carries the number; anything else takes the value.
  // Of a tuple: one of those of its items.
  void expect(PyObject* plain, c10::ArrayRef<int> numbers);
  // This copy of a tuple carries numbers of it.
  void stands_for(const py::object& made, PyObject* plain) {
    tuples_.emplace_back(made, py::reinterpret_borrow<py::object>(plain));
  }
  // What carries these in the place of a number, or of a tuple of numbers.
  py::object carried(PyObject* plain, c10::ArrayRef<int> numbers);
  // An operand of the instruction that is judged now is `made` when it runs.
  void swap(PyObject** place, py::object made) { swaps_.note(place, std::move(made)); }
  // At the next instruction of the frame, and before anything else runs.
  void deliver(Frame f) {
    if (!expected_.empty()) deliver_now(f);
    texts_.deliver(f);
  }

  // What is called in the place of a function that is exchanged.
  static py::object exchanged(PyObject* function);

  // C code, or Python code that is not watched, takes this for its own.
  void hand_over(PyObject* object, int depth = 0);
  // The recording has ended, and Python goes on: with what it would have, see Originals.
  // `made`: whether the call has made an object.
  using IsMade = std::function<bool(PyObject*)>;
  void put_originals_back(Frame top, Frame base, std::vector<Writes::Write>& writes, IsMade made) const;
  // Likewise of what its function has given and written.
  void put_originals_back(py::object* result, std::vector<Writes::Write>& writes, IsMade made) const;
  // Stays behind when the call has ended, or is compared with what stays.
  void leave(PyObject* value);

 private:
  Originals originals(IsMade made) const;

  struct CallIntoC {
    Frame frame;
    std::string name;
    size_t operators;
    std::vector<py::object> tensors;
    bool passes_on = false;  // gives back what it is given, and looks at none of it
  };
  // What becomes of tensors and carriers that the judgement comes to.
  enum class Handing : uint8_t { Pins, Checked, Ignored };

 public:
  // While a frame gives back a value to C code that `caller` has called: nothing is handed over to what only
  // passes it on.
  class Returning {
   public:
    Returning(Exchange* exchange, Frame caller) : exchange_(exchange), before_(exchange->handing_) {
      auto& called = exchange->called_;
      if (!called.empty() && called.back().frame == caller && called.back().passes_on)
        exchange->handing_ = Handing::Ignored;
    }
    ~Returning() { exchange_->handing_ = before_; }
    Returning(const Returning&) = delete;
    Returning& operator=(const Returning&) = delete;

   private:
    Exchange* exchange_;
    Handing before_;
  };

 private:
  // Whether there is anything to exchange or to hand over.
  bool live() const { return recorder_->follows_any(); }
  // Instructions that may take the value of a tensor, with which the first number comes.
  static bool takes_items(Action action) {
    return action == Action::FormatsText || action == Action::Operates || action == Action::GetsItem ||
           action == Action::SetsItem || action == Action::Calls || action == Action::CallsWith;
  }
  void deliver_now(Frame f);
  void before_item_call(Frame f, const Operation& operation);
  bool takes_out(Frame f, const Operation& operation) const;
  bool gives_item(PyObject* callable, PyObject* first) const;
  bool is_loose(PyObject* object);
  bool holds_loose(PyObject* object);
  void hand_over_tensor(PyObject* tensor);
  void expect_nothing(Frame f);
  void expect_operator(Frame f, std::string name);
  // The binding that is expected to call an operator may take plain ints, in containers among its arguments,
  // too.
  void open_binding(PyObject* const* args, Py_ssize_t count);
  void settle(PyObject* object);
  void settle_keys(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void settle_inside(PyObject* object);
  void before_attribute(PyObject** object, PyObject* name);
  bool gets_shape(PyObject* callable, PyObject** args, Py_ssize_t count);
  void before_call(Frame f, PyObject** callable, PyObject** first, PyObject** args, Py_ssize_t count);
  py::object instead_of_handed(PyObject* callable, PyObject* function);
  void exchange_handed_in(PyObject* callable, PyObject** args, PyObject** kwargs);
  void exchange_handed(PyObject* callable, PyObject** args, Py_ssize_t count);
  bool runs_python(PyObject* function) const;
  bool looks_at_none(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void before_call_extended(Frame f, const Operation& operation);
  void before_item(PyObject** container, PyObject* key, PyObject* value);
  void before_operation(PyObject* left, PyObject* right);
  void follow_scalar(PyObject** place, PyObject* other);
  void leave_to_tensor(PyObject** place, PyObject* other, int operation);
  void leave_to_float(PyObject** place, PyObject* other);
  void settle_texts(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void format_text(Frame f, const Operation& operation);
  bool exchange_callable(PyObject** callable, PyObject* first, bool numbers);
  bool shows_its_sizes(Frame f, PyObject** callable, PyObject* first, bool numbers);
  void settle_identity(PyObject** place, PyObject* other);
  void settle_identities(PyObject** objects, Py_ssize_t count);
  void settle_identities_in(PyObject** arguments);
  void check_call();

  Recorder* recorder_;
  bool follows_ = false;
  Handing handing_ = Handing::Pins;
  bool looks_for_number_ = false;
  bool told_ = false;          // a mode is told of what the instruction calls, as it is
  PyObject* names_ = nullptr;  // of the keywords of the call, or null; borrowed
  Swaps swaps_;
  TextExchange texts_;
  std::vector<CallIntoC> called_;  // the innermost last
  struct Expected {
    Frame frame;
    py::object plain;
    std::vector<int> numbers;
  };
  Frame reading_;  // whose instruction puts on the stack what it reads
  std::vector<Expected> expected_;
  std::vector<std::pair<py::object, py::object>> tuples_;  // of carriers, and what they were given for
};

// Told by Python once. `callables`: what is called in place of what. `items`: those of them that give the
// value of a tensor. `indexed(container)`: what is indexed in its place. `among(container)`: what is asked in
// its place whether it holds a number. `keepers`: C callables that store what they are given and look at none
// of it. `of_lists`: those of `callables` that are given tensors in a list. `askers`: what is called in the
// place of those that ask a tensor for its value where they want a number, if they are given one.
// `numbered(n)`: the numbers of range(n), in a tensor. `plainly(function)`: one that reads what it is given.
void configure_exchange(const py::dict& callables, const std::vector<py::object>& items, py::object indexed,
                        py::object among, const std::vector<py::object>& keepers,
                        const std::vector<py::object>& of_lists, const py::dict& askers, py::object numbered,
                        py::object plainly);
// The number as one of the kind of numpy's that `like` is of; as it is where that is no number of numpy's.
int number_like(NumberRecorder* numbers, int number, PyObject* like);
// Whether something else is called in its place when it is handed numbers that are followed.
bool is_exchanged(PyObject* callable);

// Whether it is a tensor whose value torch takes for an index; of bool and uint8 it makes masks.
bool is_index(PyObject* object);
// Whether a bound of the slice is one.
bool has_index_bound(PyObject* slice);

// The shape of a tensor as Python is given it: with sizes that are followed, where the recorder (none: nobody
// records) follows them. Needs the GIL.
py::object shape_of(Recorder* recorder, const at::Tensor& tensor);

}  // namespace lazytrace
