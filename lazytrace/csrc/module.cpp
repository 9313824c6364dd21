// lazytrace._core: what Python sees of the recorder, the runner, the observer and the signatures.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/extension.h>

#include "opaque_call.h"
#include "recording.h"

namespace lt = lazytrace;
namespace py = pybind11;

namespace {

void bind_signature(py::module_& m) {
  py::class_<lt::Call>(m, "Call")
      .def_property_readonly("key", &lt::Call::key_bytes)
      .def_readonly("unsupported", &lt::Call::unsupported)
      .def_property_readonly("tensor_count", [](const lt::Call& c) { return c.tensors.size(); });
  py::class_<lt::Signature>(m, "Signature")
      .def(py::init<std::vector<std::string>, int, int, bool, bool>())
      .def("bind", &lt::Signature::bind);
  m.def("describe_ambient", &lt::describe_ambient);
}

void bind_trace(py::module_& m) {
  py::class_<lt::Miss>(m, "Miss")
      .def_readonly("node", &lt::Miss::node)
      .def_readonly("step", &lt::Miss::step)
      .def_readonly("effects", &lt::Miss::effects)
      .def_readonly("found", &lt::Miss::found)
      .def_readonly("trace", &lt::Miss::trace)
      .def_readonly("resume", &lt::Miss::resume);
  py::class_<lt::Branched>(m, "Branched")
      .def_readonly("trace", &lt::Branched::trace)
      .def_readonly("result", &lt::Branched::result);
  py::class_<lt::Resume, std::shared_ptr<lt::Resume>>(m, "Resume")
      .def_property_readonly("branches", [](const lt::Resume& r) {
        return r.family->branches(r.step, r.program->steps[r.step].node);
      });
  py::class_<lt::Trace, std::shared_ptr<lt::Trace>>(m, "Trace")
      .def_readwrite("number", &lt::Trace::number)
      .def("join", [](const std::shared_ptr<lt::Trace>& trace) { lt::Trace::join(trace); })
      .def("replay", &lt::Trace::replay)
      .def("prove", &lt::Trace::prove)
      .def("check", &lt::Trace::check)
      .def("explain", &lt::Trace::explain)
      .def("explain_all", &lt::Trace::explain_all)
      .def("rows", &lt::Trace::rows)
      .def("guard_rows", &lt::Trace::guard_rows)
      .def("output_registers", &lt::Trace::output_registers)
      .def_property_readonly("guards", &lt::Trace::guards)
      .def_property_readonly("size", [](const lt::Trace& t) { return t.program().size(); })
      .def_property_readonly("inputs", [](const lt::Trace& t) { return t.program().inputs; })
      .def_property_readonly("captures", [](const lt::Trace& t) { return t.program().captures; })
      .def_property_readonly("effects", [](const lt::Trace& t) { return t.program().effects; })
      .def_property_readonly("random", [](const lt::Trace& t) { return t.program().random; });
}

py::object opaque_call(py::object wrapper, const std::string& attribute, py::object function, py::tuple args,
                       py::dict kwargs, bool python) {
  if (auto* recording = lt::Recording::active())
    return recording->opaque(wrapper, attribute, function, args, kwargs, python);
  return function(*args, **kwargs);
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of lazytrace.";
  m.attr("torch_version") = LAZYTRACE_TORCH_VERSION;
  bind_signature(m);
  bind_trace(m);
  py::class_<lt::Recording>(m, "Recording")
      .def(py::init<const lt::Call&, std::shared_ptr<lt::Resume>>())
      .def("run", &lt::Recording::run)
      .def("finish", &lt::Recording::finish)
      .def("ignore", &lt::Recording::ignore)
      .def("fail", &lt::Recording::fail)
      .def_property_readonly("reason", &lt::Recording::reason)
      .def_property_readonly("where", &lt::Recording::where);
  m.def("configure", &lt::configure_observer);
  m.def("configure_swap", &lt::configure_swap);
  m.attr("Diverged") = py::reinterpret_borrow<py::object>(lt::divergence_type());
  m.def("opaque_call", &opaque_call);
  m.def("aside", [](py::object function) {
    return lt::Recording::active() ? lt::Recording::active()->aside(function) : function();
  });
  m.def("is_recording", [] { return lt::Recording::active() != nullptr; });
  // Somebody else is tracing or transforming: a traced function then steps aside.
  m.def("must_step_aside", [] {
    return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
           torch::jit::tracer::isTracing();
  });
}
