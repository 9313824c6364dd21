// Makes the quick way of a GuardTree.
#pragma once

#include <vector>

#include "guard/guards.h"
#include "guard/words.h"
#include "support/address_map.h"

namespace lazytrace {

// Goes through the tasks as they were found to hold. A place in an object is asked for only where the words
// and tasks before it have shown that the object is there and how it is laid out: another object may lie at
// the address of one that is gone. Needs the GIL.
class GuardTree::WordMaker {
 public:
  WordMaker(const GuardTree& tree, const std::vector<PyObject*>& nodes);
  void make();

 private:
  // What is known of the object of a node where all before it holds.
  enum class Known : uint8_t { Nothing, There, Layout };

  bool put(const Task& task);
  bool put_namespace(const Task& task);
  bool put_place(const Task& task);
  bool put_field(const Task& task, PyFunctionObject* function, PyObject* value);
  bool put_element(PyObject* owner, Py_ssize_t index, PyObject* value);
  bool put_value(const Task& task);
  bool put_shape(const Guard& guard, PyObject* value);
  void note_asked(const Task& task);
  bool is_settled(int node) const;
  bool is_laid_out(int node) const;
  void expect(const void* place, const void* value);
  void expect(const void* place, uint64_t value, uint64_t mask);
  template <class Use>
  void each_member(const Task& task, Use use);

  const GuardTree& tree_;
  QuickWay& quick_;
  const std::vector<PyObject*>& nodes_;
  std::vector<Known> known_;
  std::vector<char> grouped_;  // whether words stand for the namespace
  AddressMap<size_t> first_;   // words by place
  int task_ = 0;
};

}  // namespace lazytrace
