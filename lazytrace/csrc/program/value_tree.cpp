#include "program/value_tree.h"

#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <unordered_map>

#include "cpython/array_memory.h"
#include "cpython/carrier.h"
#include "cpython/dict_view.h"
#include "cpython/objects.h"
#include "support/reasons.h"

namespace lazytrace {

// ---------------------------------------------------------------- taking apart
struct Tree::Builder {
  const Source& source;
  std::unordered_map<PyObject*, int>
      seen;                     // objects by order of appearance: identity within the value is kept
  std::vector<PyObject*> open;  // what is being taken apart, outermost first
  std::unordered_map<int, std::vector<PyObject*>> scalars;  // of each number: the objects that stand for it

  // One number of numpy's that the function has worked out twice is two objects: all but the first are
  // numbered.
  void tell_objects_apart(PyObject* carrier, Tree* tree) {
    std::vector<PyObject*>& objects = scalars[tree->index];
    auto at = std::find(objects.begin(), objects.end(), carrier);
    if (at != objects.begin()) tree->value = py::int_(at - objects.begin());
    if (at == objects.end()) objects.push_back(carrier);
  }

  Tree build(PyObject* v) {
    Tree tree;
    if (is_tensor(v)) {
      tree.index = source.tensor(v);
      if (tree.index < 0) throw std::runtime_error("returns a tensor that no recorded operator made");
      tree.kind =
          Py_IS_TYPE(v, parameter_class()) && source.made(tree.index) ? Kind::Parameter : Kind::Register;
      return source.made(tree.index) && has_attributes(v) ? decorated(v, std::move(tree)) : tree;
    }
    tree.index = source.number(v);
    if (tree.index >= 0) {
      tree.kind = Kind::Number;
      if (is_single_carrier(v) || is_long_carrier(v)) tell_objects_apart(v, &tree);
      return tree;
    }
    const Tree* text = source.text(v);
    if (!text && is_constant(v)) {
      source.constant(v);
      tree.value = py::reinterpret_borrow<py::object>(v);
      return tree;
    }
    int node = text ? -1 : source.state(v);
    if (node >= 0) {
      tree.kind = Kind::State;
      tree.index = node;
      return tree;
    }
    auto [at, fresh] = seen.emplace(v, static_cast<int>(seen.size()));
    if (!fresh) {
      for (PyObject* outer : open)
        if (outer == v) throw std::runtime_error("returns a value that holds itself");
      tree.kind = Kind::Same;
      tree.index = at->second;
      return tree;
    }
    if (open.size() > 100) throw std::runtime_error("returns a value that is nested too deeply");
    if (text) return *text;
    open.push_back(v);
    if (!PyWeakref_CheckRefExact(v)) source.part(v);  // that one is nobody's own
    container(v, &tree);
    open.pop_back();
    return tree;
  }

  // Of what is no number and no text that is followed.
  bool is_constant(PyObject* v) const { return is_immutable(v) && !is_enum_member(v) && !holds_number(v); }

  Tree decorated(PyObject* v, Tree tensor) {
    Tree tree;
    tree.kind = Kind::Decorated;
    tree.items.push_back(std::move(tensor));
    py::object attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(v, nullptr));
    if (!attributes) throw py::error_already_set();
    py::list names;
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(attributes.ptr(), &at, &name, &value)) {
      bool follows = is_tensor(value) || source.number(value) >= 0 || source.text(value);
      if (follows || !is_constant(value)) throw std::runtime_error(say(reason::ReturnsDecorated));
      names.append(py::handle(name));
      tree.items.push_back(build(value));
    }
    tree.value = py::tuple(names);
    return tree;
  }

  // Whether a tuple is to be taken apart for what is in it.
  bool holds_number(PyObject* v) const {
    if (!PyTuple_CheckExact(v) && !is_named_tuple(v) && !THPSize_Check(v)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); ++i)
      if (PyObject* item = PyTuple_GET_ITEM(v, i);
          source.number(item) >= 0 || source.text(item) || holds_number(item))
        return true;
    return false;
  }

  void container(PyObject* v, Tree* tree) {
    if (PyTuple_CheckExact(v) || PyList_CheckExact(v)) {
      tree->kind = PyTuple_CheckExact(v) ? Kind::Tuple : Kind::List;
      sequence(v, tree);
    } else if (is_named_tuple(v) || THPSize_Check(v)) {
      tree->kind = Kind::Named;
      tree->value = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(v)));
      sequence(v, tree);
    } else if (PyDict_CheckExact(v)) {
      judge_keys(v);
      tree->kind = Kind::Dict;
      mapping(v, tree);
    } else if (PySet_CheckExact(v)) {
      tree->kind = Kind::Set;
      py::object items = py::reinterpret_steal<py::object>(PySequence_List(v));
      judge_order(items.ptr());
      if (PyList_GET_SIZE(items.ptr())) judge_key(PyList_GET_ITEM(items.ptr(), 0));
      sequence(items.ptr(), tree);
    } else if (int reg = source.array(v); reg >= 0) {
      tree->kind = Kind::Array;
      tree->index = reg;
    } else if (PyWeakref_CheckRefExact(v)) {
      reference(v, tree);
    } else if (source.module && is_partial(v)) {
      partial(v, tree);
    } else if (const char* maker = source.module ? maker_of_view(v) : nullptr) {
      tree->kind = Kind::View;
      tree->value = py::str(maker);
      tree->items.push_back(build(dict_of_view(v)));
    } else if (source.module && PyMethod_Check(v)) {
      tree->kind = Kind::Method;
      tree->items.push_back(build(PyMethod_GET_FUNCTION(v)));
      tree->items.push_back(build(PyMethod_GET_SELF(v)));
    } else if (source.module && PyFunction_Check(v)) {
      function(v, tree);
    } else {
      object(v, tree);
    }
  }

  // Code of the user's that hashes a key has run by now, and may have done more than that.
  static void judge_key(PyObject* key) {
    if (!is_silent_key(key)) throw std::runtime_error(say(reason::ReadsOddKey, type_name(key)));
  }

  static void judge_keys(PyObject* dict) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; !has_plain_keys(dict) && PyDict_Next(dict, &at, &key, &value);) judge_key(key);
  }

  // Filled in its own order, a set may come to another: that hangs on what was taken out of it, too. Code of
  // the user's that gives a hash is not run for that.
  static void judge_order(PyObject* items) {
    static PyObject* const hash = PyUnicode_InternFromString("__hash__");
    Py_ssize_t count = PyList_GET_SIZE(items);
    if (count < 2) return;
    auto asks_python = [](PyObject* v) {
      bool made = is_python_class(Py_TYPE(v)) && !is_enum_member(v);
      PyObject* method = made ? _PyType_Lookup(Py_TYPE(v), hash) : nullptr;
      return method && PyFunction_Check(method);
    };
    bool known =
        std::none_of(PySequence_Fast_ITEMS(items), PySequence_Fast_ITEMS(items) + count, asks_python);
    auto again = py::reinterpret_steal<py::object>(known ? PySet_New(items) : nullptr);
    auto order = py::reinterpret_steal<py::object>(again ? PySequence_List(again.ptr()) : nullptr);
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!order || PyList_GET_ITEM(items, i) != PyList_GET_ITEM(order.ptr(), i)) {
        PyErr_Clear();
        throw std::runtime_error("returns a set whose order hangs on how it was made");
      }
  }

  static bool is_partial(PyObject* v) {
    return std::strcmp(c_name(Py_TYPE(v)), "functools.partial") == 0 && !has_attributes(v);
  }

  // The method of a plain dict, or of an OrderedDict, that gives such a view; null of anything else.
  static const char* maker_of_view(PyObject* v) {
    PyTypeObject* type = Py_TYPE(v);
    bool keys = type == &PyDictKeys_Type || type == &PyODictKeys_Type;
    bool values = type == &PyDictValues_Type || type == &PyODictValues_Type;
    if (!keys && !values && type != &PyDictItems_Type && type != &PyODictItems_Type) return nullptr;
    PyObject* dict = dict_of_view(v);
    if (!PyDict_CheckExact(dict) && !PyODict_CheckExact(dict)) return nullptr;
    return keys ? "keys" : values ? "values" : "items";
  }

  void partial(PyObject* v, Tree* tree) {
    tree->kind = Kind::Partial;
    tree->value = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(v)));
    for (const char* part : {"func", "args", "keywords"})
      tree->items.push_back(build(py::object(py::handle(v).attr(part)).ptr()));
  }

  // CPython gives one and the same to all who ask for one without a callback. To what the call has made it
  // would tell how long that lives.
  void reference(PyObject* v, Tree* tree) {
    PyObject* to = PyWeakref_GET_OBJECT(v);
    bool calls_back = reinterpret_cast<PyWeakReference*>(v)->wr_callback;
    tree->kind = Kind::Reference;
    if (!calls_back && to != Py_None) tree->items.push_back(build(to));
    Tree* item = tree->items.empty() ? nullptr : &tree->items[0];
    bool there =
        item && (item->kind == Kind::State || (item->kind == Kind::Register && !source.made(item->index)));
    if (!there) throw std::runtime_error(say(reason::ReturnsOdd, "weakref.ReferenceType"));
  }

  // Nothing but its code, and what that was given when it was made.
  void function(PyObject* v, Tree* tree) {
    auto* f = reinterpret_cast<PyFunctionObject*>(v);
    auto* code = reinterpret_cast<PyCodeObject*>(f->func_code);
    bool plain = !f->func_annotations && f->func_name == code->co_name &&
                 f->func_qualname == code->co_qualname && !(f->func_dict && PyDict_GET_SIZE(f->func_dict));
    int module = plain ? source.module(f->func_globals) : -1;
    if (module < 0) throw std::runtime_error("hands on a function that cannot be made again");
    tree->kind = Kind::Function;
    tree->value = py::reinterpret_borrow<py::object>(f->func_code);
    tree->items.emplace_back();
    tree->items.back().kind = Kind::State;
    tree->items.back().index = module;
    for (PyObject* defaults : {f->func_defaults, f->func_kwdefaults})
      tree->items.push_back(build(defaults ? defaults : Py_None));
    for (Py_ssize_t i = 0; f->func_closure && i < PyTuple_GET_SIZE(f->func_closure); ++i) {
      PyObject* cell = PyTuple_GET_ITEM(f->func_closure, i);
      if (!PyCell_GET(cell)) throw std::runtime_error("hands on a function that cannot be made again");
      tree->items.push_back(this->cell(cell, v));
    }
  }

  Tree cell(PyObject* cell, PyObject* function) {
    Tree tree;
    auto [node, place] = source.cell(cell, function);
    tree.kind = Kind::Cell;
    tree.index = node;
    if (node >= 0) {
      tree.value = py::int_(place);
      return tree;
    }
    auto [at, fresh] = seen.emplace(cell, static_cast<int>(seen.size()));
    if (fresh) {
      tree.items.push_back(build(PyCell_GET(cell)));
    } else {
      tree.kind = Kind::Same;
      tree.index = at->second;
    }
    return tree;
  }

  void sequence(PyObject* v, Tree* tree) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(v); ++i)
      tree->items.push_back(build(PySequence_Fast_GET_ITEM(v, i)));
  }

  void mapping(PyObject* v, Tree* tree) {
    PyObject *key, *item;
    Py_ssize_t pos = 0;
    while (PyDict_Next(v, &pos, &key, &item)) {
      tree->items.push_back(build(key));
      tree->items.push_back(build(item));
    }
  }

  // An instance of a Python class is its type, its slots, its __dict__ and what it holds as a dict or a list.
  void object(PyObject* v, Tree* tree) {
    bool single = true;
    py::object state;
    if (is_rebuildable(v)) state = py::reinterpret_steal<py::object>(instance_state(v, &single));
    if (!state || !single)
      throw std::runtime_error(std::string("returns a ") + Py_TYPE(v)->tp_name +
                               ", which cannot be rebuilt at a replay");
    tree->kind = Kind::Object;
    tree->value = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(v)));
    tree->items.push_back(Tree());
    tree->items.back().kind = Kind::Dict;
    mapping(state.ptr(), &tree->items.back());
    if (PyDict_Check(v)) {
      judge_keys(v);
      tree->items.push_back(Tree());
      tree->items.back().kind = Kind::Dict;
      py::object items = py::reinterpret_steal<py::object>(ordered_items(v));
      mapping(items.ptr(), &tree->items.back());
    } else if (PyList_Check(v)) {
      tree->items.push_back(Tree());
      tree->items.back().kind = Kind::List;
      sequence(v, &tree->items.back());
    }
  }
};

Tree Tree::of(PyObject* value, const Source& source) { return Builder{source, {}, {}, {}}.build(value); }

// ---------------------------------------------------------------- putting together
struct Tree::Rebuilder {
  const Fill& fill;
  std::vector<PyObject*> made;                        // borrowed from the value that is being built
  std::map<std::pair<int, int>, py::object> scalars;  // by number and object

  py::object number(const Tree& t) {
    const Number& number = (*fill.numbers)[static_cast<size_t>(t.index)];
    bool shows = number.kind == Number::Kind::Single || number.kind == Number::Kind::Long;
    if (!shows) return to_python(number, fill.values[t.index]);
    auto [at, missing] = scalars.try_emplace({t.index, t.value ? t.value.cast<int>() : 0});
    if (missing) at->second = to_python(number, fill.values[t.index]);
    return at->second;
  }

  py::object build(const Tree& t) {
    switch (t.kind) {
      case Kind::Register:
        return py::reinterpret_steal<py::object>(THPVariable_Wrap(fill.registers[t.index]));
      case Kind::Parameter:
        return py::reinterpret_steal<py::object>(
            THPVariable_Wrap(fill.registers[t.index], parameter_class()));
      case Kind::Array: {
        auto array = py::reinterpret_steal<py::object>(array_of_tensor(fill.registers[t.index]));
        if (!array) throw py::error_already_set();
        made.push_back(array.ptr());
        return array;
      }
      case Kind::Number:
        return number(t);
      case Kind::Constant:
        return t.value;
      case Kind::State:
        return py::reinterpret_borrow<py::object>(fill.state[t.index]);
      case Kind::Same:
        return py::reinterpret_borrow<py::object>(made[t.index]);
      case Kind::Tuple:
      case Kind::Named:
        return after_its_parts([&] { return tuple(t); });
      case Kind::List: {
        py::list list;
        made.push_back(list.ptr());
        for (auto& item : t.items) list.append(build(item));
        return std::move(list);
      }
      case Kind::Set: {
        py::set set;
        made.push_back(set.ptr());
        for (auto& item : t.items) set.add(build(item));
        return std::move(set);
      }
      case Kind::Dict: {
        py::dict dict;
        made.push_back(dict.ptr());
        pairs(t, dict.ptr());
        return std::move(dict);
      }
      case Kind::Object:
        return object(t);
      case Kind::Partial:
        return after_its_parts([&] { return partial(t); });
      case Kind::View:
        return after_its_parts([&] { return build(t.items[0]).attr(t.value)(); });
      case Kind::Method:
        return after_its_parts([&] { return method(t); });
      case Kind::Reference:
        return after_its_parts([&] { return reference(t); });
      case Kind::Function:
        return after_its_parts([&] { return function(t); });
      case Kind::Cell:
        return t.index < 0 ? after_its_parts([&] { return cell(t); }) : cell_of_before(t);
      case Kind::Text:
        return after_its_parts([&] { return text(t); });
      case Kind::Decorated:
        return decorated(t);
    }
    throw std::logic_error("unknown kind of tree");
  }

  // What can only be made of its parts: nothing can be inside it and be it, but its number counts.
  template <typename Make>
  py::object after_its_parts(Make make) {
    size_t place = made.size();
    made.push_back(nullptr);
    py::object result = make();
    if (!result) throw py::error_already_set();
    made[place] = result.ptr();
    return result;
  }

  py::object tuple(const Tree& t) {
    py::tuple items(t.items.size());
    for (size_t i = 0; i < t.items.size(); ++i) items[i] = build(t.items[i]);
    if (t.kind == Kind::Tuple) return std::move(items);
    auto* type = reinterpret_cast<PyTypeObject*>(t.value.ptr());
    return py::reinterpret_steal<py::object>(new_named_tuple(type, items.ptr()));
  }

  py::object decorated(const Tree& t) {
    py::object tensor = build(t.items[0]);
    auto attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(tensor.ptr(), nullptr));
    if (!attributes) throw py::error_already_set();
    for (size_t i = 1; i < t.items.size(); ++i) attributes[t.value[py::int_(i - 1)]] = t.items[i].value;
    return tensor;
  }

  py::object partial(const Tree& t) {
    py::object called = build(t.items[0]), args = build(t.items[1]), named = build(t.items[2]);
    return t.value(called, *args, **named);
  }

  py::object method(const Tree& t) {
    py::object called = build(t.items[0]), self = build(t.items[1]);
    return py::reinterpret_steal<py::object>(PyMethod_New(called.ptr(), self.ptr()));
  }

  py::object reference(const Tree& t) {
    return py::reinterpret_steal<py::object>(PyWeakref_NewRef(build(t.items[0]).ptr(), nullptr));
  }

  py::object function(const Tree& t) {
    py::object module = build(t.items[0]);
    auto result =
        py::reinterpret_steal<py::object>(PyFunction_New(t.value.ptr(), PyModule_GetDict(module.ptr())));
    if (!result) throw py::error_already_set();
    py::object defaults = build(t.items[1]), named = build(t.items[2]);
    if (!defaults.is_none()) PyFunction_SetDefaults(result.ptr(), defaults.ptr());
    if (!named.is_none()) PyFunction_SetKwDefaults(result.ptr(), named.ptr());
    constexpr size_t kClosure = 3;
    if (t.items.size() > kClosure) {
      py::tuple closure(t.items.size() - kClosure);
      for (size_t i = kClosure; i < t.items.size(); ++i) closure[i - kClosure] = build(t.items[i]);
      if (PyFunction_SetClosure(result.ptr(), closure.ptr()) < 0) throw py::error_already_set();
    }
    return result;
  }

  py::object cell(const Tree& t) {
    return py::reinterpret_steal<py::object>(PyCell_New(build(t.items[0]).ptr()));
  }

  py::object cell_of_before(const Tree& t) {
    PyObject* closure = PyFunction_GET_CLOSURE(fill.state[t.index]);
    return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(closure, t.value.cast<Py_ssize_t>()));
  }

  // Its arguments are a value of their own.
  py::object text(const Tree& t) {
    py::tuple args(t.items.size());
    for (size_t i = 0; i < t.items.size(); ++i) args[i] = t.items[i].build(fill);
    return t.value(*args);
  }

  void pairs(const Tree& t, PyObject* dict) {
    for (size_t i = 0; i + 1 < t.items.size(); i += 2) {
      py::object key = build(t.items[i]), item = build(t.items[i + 1]);
      if (PyDict_SetItem(dict, key.ptr(), item.ptr()) < 0) throw py::error_already_set();
    }
  }

  py::object object(const Tree& t) {
    auto* type = reinterpret_cast<PyTypeObject*>(t.value.ptr());
    py::object result = py::reinterpret_steal<py::object>(new_instance(type));
    if (!result) throw py::error_already_set();
    made.push_back(result.ptr());
    py::dict state;
    pairs(t.items[0], state.ptr());
    if (t.items.size() > 1 && t.items[1].kind == Kind::Dict) {
      py::dict items;
      pairs(t.items[1], items.ptr());
      if (fill_mapping(result.ptr(), items.ptr()) < 0) throw py::error_already_set();
    } else if (t.items.size() > 1) {
      for (auto& item : t.items[1].items)
        if (PyList_Append(result.ptr(), build(item).ptr()) < 0) throw py::error_already_set();
    }
    if (set_instance_state(result.ptr(), state.ptr()) < 0) throw py::error_already_set();
    return result;
  }
};

py::object Tree::build(const Fill& fill) const { return Rebuilder{fill, {}, {}}.build(*this); }

py::object Tree::build_first(const Fill& fill) const {
  if (kind == Kind::Constant) return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(value.ptr(), 0));
  Rebuilder rebuilder{fill, {}, {}};
  const Tree& first = items[0];
  // Objects that are the same are numbered with the tuple as the first.
  if (!first.items.empty()) rebuilder.made.push_back(nullptr);
  return rebuilder.build(first);
}

void Tree::each_register(const std::function<void(int)>& visit) const {
  if (holds_tensor() || kind == Kind::Array) visit(index);
  for (auto& item : items) item.each_register(visit);
}

void Tree::each_number(const std::function<void(int)>& visit) const {
  if (kind == Kind::Number) visit(index);
  for (auto& item : items) item.each_number(visit);
}

bool Tree::takes_numbers() const {
  bool any = false;
  each_number([&](int) { any = true; });
  return any;
}

bool Tree::is_plain() const {
  return holds_tensor() || kind == Kind::Number || kind == Kind::Text || kind == Kind::Constant ||
         kind == Kind::State || kind == Kind::Reference;
}

void Tree::each_state(const std::function<void(int&)>& visit) {
  if (kind == Kind::State || (kind == Kind::Cell && index >= 0)) visit(index);
  for (auto& item : items) item.each_state(visit);
}

void Tree::containers(PyObject* value, std::vector<PyObject*>* out) {
  if (out->size() > 10000 || is_tensor(value) || is_immutable(value)) return;
  for (PyObject* known : *out)
    if (known == value) return;
  out->push_back(value);
  if (PyTuple_Check(value) || PyList_Check(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      containers(PySequence_Fast_GET_ITEM(value, i), out);
  } else if (PyDict_Check(value)) {
    PyObject *key, *item;
    Py_ssize_t pos = 0;
    while (PyDict_Next(value, &pos, &key, &item)) containers(item, out);
  }
  PyObject** dict = _PyObject_GetDictPtr(value);
  if (dict && *dict && is_rebuildable(value)) containers(*dict, out);
}

}  // namespace lazytrace
