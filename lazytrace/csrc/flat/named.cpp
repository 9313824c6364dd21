#include "flat/named.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <utility>

#include "cpython/imports.h"
#include "flat/replayed_backward.h"

namespace lazytrace {

namespace {

namespace py = pybind11;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Python knows nodes by their C++ type, so each name needs one of its own.
constexpr size_t kMostKinds = 64;

std::array<NodeName, kMostKinds>& names() {
  static auto* all = new std::array<NodeName, kMostKinds>();
  return *all;
}

// One that can be led on to something else than it was made for, after others have come to lead to it.
struct Passing : Node {
  // The engine leaves out what is no deeper than where a pass ends: this is as deep as what it stands for.
  void deepen(uint64_t by) { topological_nr_ += by; }
  void lead_on(torch::autograd::Edge edge, bool whole, std::shared_ptr<const MemoryThen> shown) {
    next_edges_.resize(1);
    next_edges_[0] = std::move(edge);
    whole_ = whole;
    shown_ = std::move(shown);
  }

 protected:
  bool whole_ = false;
  std::shared_ptr<const MemoryThen> shown_;
};

template <size_t Kind>
struct Named final : Passing {
  explicit Named(bool passes) : passes_(passes) {}
  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(passes_, torch::autograd::ERR_BACKWARD_TWICE);
    bool hooks = !tensor_pre_hooks().empty() || !retains_grad_hooks().empty();
    if (!post_hooks().empty() || (whole_ && hooks)) refuse_hooks();
    if (shown_) shown_->check();
    // Of a result that is not the first of its node, the last gradient is its own.
    variable_list own = {std::move(gradients.back())};
    if (num_outputs() > 1) bring_inside(&own);
    return own;
  }
  std::string name() const override { return names()[Kind].name; }

 private:
  // The edges behind the first lead to other results, which this one is made of.
  void bring_inside(variable_list* gradients) {
    const auto& edge = next_edge(0);
    gradients->resize(num_outputs());
    static_cast<ReplayedBackward*>(edge.function.get())
        ->bring_inside(edge.input_nr, (*gradients)[0], gradients);
  }
  // They would be given what comes to the result in place of what comes of it.
  void refuse_hooks() {
    if (auto* behind = dynamic_cast<ReplayedBackward*>(next_edge(0).function.get())) behind->give_up();
    TORCH_CHECK(false,
                "a hook was set on the node of a result (grad_fn.register_hook, or after a backward pass "
                "that asked for "
                "the whole graph) of a replay of a traced function, in which one node stands for that graph. "
                "From now on the function builds its graph at each "
                "call; make this call again, or set the hook on a tensor.");
  }

  bool passes_;
};

struct Maker {
  c10::intrusive_ptr<Node> (*make)(bool passes);
  const std::type_info* type;
};

template <size_t... Kind>
constexpr std::array<Maker, sizeof...(Kind)> makers_of(std::index_sequence<Kind...>) {
  return {
      Maker{[](bool passes) -> c10::intrusive_ptr<Node> { return c10::make_intrusive<Named<Kind>>(passes); },
            &typeid(Named<Kind>)}...};
}

const std::array<Maker, kMostKinds>& makers() {
  static const auto all = makers_of(std::make_index_sequence<kMostKinds>());
  return all;
}

// The Python class of the nodes of one kind, as torch makes those of its own nodes.
void show_to_python(size_t kind, const std::string& name) {
  auto* type = new PyTypeObject();
  Py_SET_REFCNT(reinterpret_cast<PyObject*>(type), 1);
  auto* text = new std::string(name);  // both for the life of the process, like torch's
  torch::autograd::_initFunctionPyTypeObject(*type, text->c_str(), nullptr, nullptr);
  torch::autograd::registerCppFunction(*makers()[kind].type, type);
  from_module("torch.autograd.graph", "Node").attr("register")(py::handle(reinterpret_cast<PyObject*>(type)));
}

}  // namespace

int node_kind(const NodeName& name) {
  for (size_t kind = 0; kind < kMostKinds; ++kind) {
    NodeName& known = names()[kind];
    if (known == name) return static_cast<int>(kind);
    if (!known.type.empty()) continue;
    show_to_python(kind, name.type);
    known = name;
    return static_cast<int>(kind);
  }
  return -1;
}

NodeName node_name_of(const at::Tensor& tensor) {
  py::object node = py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(tensor.grad_fn()));
  return {Py_TYPE(node.ptr())->tp_name, tensor.grad_fn()->name()};
}

c10::intrusive_ptr<Node> make_passing(int kind, torch::autograd::edge_list next, uint64_t depth) {
  auto node = makers()[static_cast<size_t>(kind)].make(true);
  node->set_next_edges(std::move(next));
  static_cast<Passing*>(node.get())->deepen(depth);
  return node;
}

void skip_inputs(Node* node, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) node->add_input_metadata(Node::undefined_input());
}

void lead_on(Node* passing, torch::autograd::Edge edge, bool whole, std::shared_ptr<const MemoryThen> shown) {
  static_cast<Passing*>(passing)->lead_on(std::move(edge), whole, std::move(shown));
}

c10::intrusive_ptr<Node> make_spent(int kind) { return makers()[static_cast<size_t>(kind)].make(false); }

}  // namespace lazytrace
