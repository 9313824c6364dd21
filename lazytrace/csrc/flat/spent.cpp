#include "flat/spent.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <utility>

namespace lazytrace {

namespace {

namespace py = pybind11;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Python knows nodes by their C++ type, so each name needs one of its own.
constexpr size_t kMostKinds = 64;

std::array<std::string, kMostKinds>& names() {
  static auto* all = new std::array<std::string, kMostKinds>();
  return *all;
}

template <size_t Kind>
struct Spent final : Node {
  variable_list apply(variable_list&&) override {
    TORCH_CHECK(false, torch::autograd::ERR_BACKWARD_TWICE);
  }
  std::string name() const override { return names()[Kind]; }
};

struct Maker {
  c10::intrusive_ptr<Node> (*make)();
  const std::type_info* type;
};

template <size_t... Kind>
constexpr std::array<Maker, sizeof...(Kind)> makers_of(std::index_sequence<Kind...>) {
  return {Maker{[]() -> c10::intrusive_ptr<Node> { return c10::make_intrusive<Spent<Kind>>(); },
                &typeid(Spent<Kind>)}...};
}

const std::array<Maker, kMostKinds>& makers() {
  static const auto all = makers_of(std::make_index_sequence<kMostKinds>());
  return all;
}

// The Python class of the nodes of one kind, as torch makes those of its own nodes.
void show_to_python(size_t kind, const std::string& name) {
  auto* type = new PyTypeObject{PyVarObject_HEAD_INIT(nullptr, 0)};
  auto* text = new std::string(name);  // both for the life of the process, like torch's
  torch::autograd::_initFunctionPyTypeObject(*type, text->c_str(), nullptr, nullptr);
  torch::autograd::registerCppFunction(*makers()[kind].type, type);
  py::module_::import("torch.autograd.graph")
      .attr("Node")
      .attr("register")(py::handle(reinterpret_cast<PyObject*>(type)));
}

}  // namespace

int spent_kind(const std::string& name) {
  for (size_t kind = 0; kind < kMostKinds; ++kind) {
    std::string& known = names()[kind];
    if (known == name) return static_cast<int>(kind);
    if (!known.empty()) continue;
    show_to_python(kind, name);
    known = name;
    return static_cast<int>(kind);
  }
  return -1;
}

c10::intrusive_ptr<Node> make_spent(int kind) { return makers()[static_cast<size_t>(kind)].make(); }

}  // namespace lazytrace
