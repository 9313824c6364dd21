#include "signature/ambient.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/tensor/python_tensor.h>

#include <sstream>
#include <unordered_set>
#include <vector>

#include "cpython/objects.h"
#include "support/reasons.h"
#include "torch/autocast.h"
#include "torch/autocast_regions.h"
#include "torch/gpu.h"
#include "torch/overrides.h"
#include "torch/record_key.h"

namespace lazytrace {

namespace {

const char* text_of_torch_function(uint8_t state) {
  static const char* const kTexts[] = {"enabled", "disabled for subclasses", "disabled"};
  return state < 3 ? kTexts[state] : "unknown";
}

constexpr size_t kProcess = 0
#define AMBIENT_PROCESS(words, usual, read, readers, write) +1
#include "signature/ambient.def"
    ;
constexpr size_t kFlags = 0
#define AMBIENT_FLAG(words, usual, read, readers) +1
#include "signature/ambient.def"
    ;
constexpr size_t kNumbers = 0
#define AMBIENT_NUMBER(words, usual, read, text, readers) +1
#include "signature/ambient.def"
    ;
constexpr size_t kOrderBits = 13;
static_assert(kProcess + kOrderBits <= 32 && kFlags <= 32, "the flags of a key are two words");

// In which order torch asks the kernels of attention whether they can: six of them, at::SDPBackend::error
// among them, at each place.
constexpr uint32_t kBackends = at::num_sdp_backends + 1;
constexpr uint32_t count_orders(size_t places) { return places ? kBackends * count_orders(places - 1) : 1; }
static_assert(count_orders(at::num_sdp_backends) <= 1u << kOrderBits, "an order has too few bits");

uint32_t number_of_order() {
  uint32_t number = 0;
  for (at::SDPBackend backend : at::globalContext().sDPPriorityOrder())
    number = number * kBackends + static_cast<uint32_t>(static_cast<int32_t>(backend) + 1);
  return number;
}

std::vector<int64_t> order_of(uint32_t number) {
  std::vector<int64_t> order(at::num_sdp_backends);
  for (size_t i = order.size(); i-- > 0; number /= kBackends)
    order[i] = static_cast<int64_t>(number % kBackends) - 1;
  return order;
}

std::string text_of_order(uint32_t number) {
  std::string text;
  for (int64_t backend : order_of(number)) text += (text.empty() ? "" : ", ") + std::to_string(backend);
  return text;
}

const char* const kOrder = "sdp.priority_order";
const char* const kUsualOrder = "1, 2, 0, 3, 4";

uint32_t ask_process_flags(const at::Context& context) {
  auto sparse = context.checkSparseTensorInvariants();
  uint32_t flags = number_of_order();
#define AMBIENT_PROCESS(words, usual, read, readers, write) flags = flags << 1 | static_cast<uint32_t>(read);
#include "signature/ambient.def"
  return flags;
}

// Asks torch only when the object that holds these switches is not as it was: a call for each would take
// longer than comparing the whole. Needs the GIL.
uint32_t process_flags() {
  static const at::Context& context = at::globalContext();
  // What comes first says which devices have been initialized, and is no switch.
  constexpr size_t kFirst = sizeof(std::array<c10::once_flag, at::COMPILE_TIME_MAX_DEVICE_TYPES>);
  constexpr size_t kSize = sizeof(at::Context) - kFirst;
  static unsigned char seen[kSize];
  static uint32_t flags = 0;
  static bool asked = false;
  const auto* now = reinterpret_cast<const unsigned char*>(&context) + kFirst;
  if (!asked || std::memcmp(seen, now, kSize) != 0) {
    std::memcpy(seen, now, kSize);
    flags = ask_process_flags(context);
    asked = true;
  }
  return flags;
}

// What the key holds of the ambient state, in one piece without gaps.
struct Ambient {
  uint64_t included,
      excluded;  // the dispatch keys that are switched on and off, those of autocast among them
  uint32_t process_flags, flags = 0;
  AutocastDtypes autocast_dtypes;
  uint8_t numbers[kNumbers];
  static constexpr size_t kUsed = kAutocastCount + kNumbers;
  uint8_t none[(8 - kUsed % 8) % 8] = {};

  static Ambient now(SavedHooks hooks = saved_hooks());
};
static_assert(sizeof(Ambient) == 24 + (Ambient::kUsed + 7) / 8 * 8, "no byte of a key may be left unset");

Ambient Ambient::now(SavedHooks hooks) {
  auto& autograd = c10::AutogradState::get_tls_state();
  auto local = c10::impl::tls_local_dispatch_key_set();
  Ambient ambient;
  // Without that of a recording, in which a step that stays whole may ask.
  ambient.included = local.included_.remove(kRecordKey).raw_repr();
  ambient.excluded = local.excluded_.raw_repr();
  ambient.process_flags = lazytrace::process_flags();
  ambient.autocast_dtypes = lazytrace::autocast_dtypes();
  size_t number = 0;
#define AMBIENT_FLAG(words, usual, read, readers) \
  ambient.flags = ambient.flags << 1 | static_cast<uint32_t>(read);
#define AMBIENT_NUMBER(words, usual, read, text, readers) \
  ambient.numbers[number++] = static_cast<uint8_t>(read);
#include "signature/ambient.def"
  return ambient;
}

// Calls visit(mode) for each torch function mode, the oldest first.
template <typename F>
void each_function_mode(F visit) {
  int64_t count = at::impl::PythonTorchFunctionTLS::stack_len();
  for (int64_t i = 0; i < count; ++i)
    visit(at::impl::PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter()));
}

std::string device_of(PyObject* context) {
  py::object device = py::reinterpret_borrow<py::object>(context).attr("device");
  return text_of(py::str(device).ptr());
}

void append_function_modes(Call* call) {
  each_function_mode([&](PyObject* mode) {
    if (is_device_context(mode))
      call->key.put_text(device_of(mode));
    else
      call->refuse(say(reason::FunctionMode, type_name(mode)));
  });
}

// Without the keys that rows of their own speak of: those of autocast, and those that inference mode
// switches.
std::string text_of(uint64_t keys, bool inference) {
  c10::DispatchKeySet shown(c10::DispatchKeySet::RAW, keys);
  for (c10::DispatchKey key : autocast_keys()) shown = shown.remove(key);
  if (inference) shown = shown - c10::autograd_dispatch_keyset;
  std::string text;
  for (c10::DispatchKey key : shown.remove(c10::DispatchKey::ADInplaceOrView))
    text += (text.empty() ? "" : ", ") + std::string(c10::toString(key));
  return text.empty() ? "none" : text;
}

void describe_autocast(const Ambient& now, py::dict* result) {
  c10::DispatchKeySet off(c10::DispatchKeySet::RAW, now.excluded);
  for (size_t i = 0; i < kAutocastCount; ++i) {
    std::string device = "(" + c10::DeviceTypeName(kAutocastDevices[i], true) + ")";
    std::string dtype = c10::toString(static_cast<c10::ScalarType>(now.autocast_dtypes[i]));
    (*result)[py::str("autocast" + device)] = off.has(autocast_keys()[i]) ? "off" : dtype;
    (*result)[py::str("autocast_dtype" + device)] = dtype;
  }
}

}  // namespace

uint32_t process_switches() { return process_flags(); }

namespace {
void set_process_flags(uint32_t flags) {
  at::Context& context = at::globalContext();
  size_t row = kProcess;
  bool value = false;
#define AMBIENT_PROCESS(words, usual, read, readers, write) \
  value = (flags >> --row & 1) != 0;                        \
  write;
#include "signature/ambient.def"
  if (number_of_order() != flags >> kProcess) context.setSDPPriorityOrder(order_of(flags >> kProcess));
}
}  // namespace

ProcessSwitchesOfThen::ProcessSwitchesOfThen(uint32_t then)
    : found_(ask_process_flags(at::globalContext())), other_(found_ != then) {
  if (other_) set_process_flags(then);
}

ProcessSwitchesOfThen::~ProcessSwitchesOfThen() {
  if (other_) set_process_flags(found_);
}

bool is_device_context(PyObject* object) {
  static PyTypeObject* type = nullptr;
  // There is none as long as nobody has imported its module.
  PyObject* module = type ? nullptr : PyDict_GetItemString(PyImport_GetModuleDict(), "torch.utils._device");
  if (module && PyModule_Check(module))
    type = reinterpret_cast<PyTypeObject*>(PyDict_GetItemString(PyModule_GetDict(module), "DeviceContext"));
  PyErr_Clear();
  return type && Py_IS_TYPE(object, type);
}

bool function_mode_listens() {
  if (!at::impl::torch_function_mode_enabled()) return false;
  bool found = false;
  each_function_mode([&](PyObject* mode) { found |= !is_device_context(mode); });
  return found;
}

namespace {
bool any_autocast(const Ambient& now) {
  static const c10::DispatchKeySet all = [] {
    c10::DispatchKeySet keys;
    for (c10::DispatchKey key : autocast_keys()) keys = keys.add(key);
    return keys;
  }();
  return (all.raw_repr() & ~now.excluded) != 0;
}

// Torch's parser puts a number that is followed on the Python object of the tensor that it makes of it: code
// of the user's would be told of that, and might not keep it.
bool keeps_numbers_on_tensors() {
  const auto* type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  return type->tp_setattro == PyObject_GenericSetAttr && type->tp_getattro == PyObject_GenericGetAttr;
}
}  // namespace

void append_ambient(Call* call) {
  SavedHooks hooks = saved_hooks();
  Ambient now = Ambient::now(hooks);
  call->key.put(now);
  // What it has cast stays until somebody clears it, which the regions of this call would do at their ends.
  if (any_autocast(now) && !is_in_autocast_region()) return call->refuse(say(reason::LeavesModes));
  if (c10::impl::TorchDispatchModeTLS::stack_len() > 0) return call->refuse(say(reason::DispatchMode));
  if (is_capturing()) return call->refuse(say(reason::Capturing));
  if (!keeps_numbers_on_tensors()) return call->refuse(say(reason::PatchedTensor));
  if (hooks == SavedHooks::Others) return call->refuse(say(reason::SavedHooks));
  if (at::impl::torch_function_mode_enabled()) append_function_modes(call);
}

namespace {
py::dict described(const Ambient& now) {
  py::dict result;
  size_t process = kProcess, flag = kFlags, number = 0;
#define AMBIENT_PROCESS(words, usual, read, readers, write) \
  result[words] = (now.process_flags >> --process & 1) != 0;
#define AMBIENT_FLAG(words, usual, read, readers) result[words] = (now.flags >> --flag & 1) != 0;
#define AMBIENT_NUMBER(words, usual, read, text, readers) \
  {                                                       \
    uint8_t value = now.numbers[number++];                \
    result[words] = text;                                 \
  }
#include "signature/ambient.def"
  result[kOrder] = text_of_order(now.process_flags >> kProcess);
  describe_autocast(now, &result);
  bool inference = c10::InferenceMode::is_enabled();
  result["dispatch_keys_on"] = text_of(now.included, inference);
  result["dispatch_keys_off"] = text_of(now.excluded, inference);
  return result;
}

std::string function_modes() {
  std::string devices;
  each_function_mode([&](PyObject* mode) {
    devices += (devices.empty() ? "" : ", ") + (is_device_context(mode) ? device_of(mode) : type_name(mode));
  });
  return devices.empty() ? "none" : devices;
}
}  // namespace

py::dict describe_ambient() {
  // Most calls of a process are made under the same switches: they share the words, which events keep.
  static auto* last = new std::pair<Ambient, py::dict>();
  Ambient now = Ambient::now();
  std::string modes = function_modes();
  bool same = last->second.size() > 0 && std::memcmp(&last->first, &now, sizeof now) == 0 &&
              last->second["default_device"].cast<std::string>() == modes;
  if (!same) {
    py::dict words = described(now);
    words["default_device"] = modes;
    *last = std::make_pair(now, words);
  }
  return last->second;
}

py::dict usual_ambient() {
  py::dict result;
#define AMBIENT_PROCESS(words, usual, read, readers, write) result[words] = usual;
#define AMBIENT_FLAG(words, usual, read, readers) result[words] = usual;
#define AMBIENT_NUMBER(words, usual, read, text, readers) result[words] = usual;
#include "signature/ambient.def"
  result[kOrder] = kUsualOrder;
  return result;
}

bool reads_ambient(const std::string& function) {
  static const auto* known = [] {
    auto* names = new std::unordered_set<std::string>();
    for (const char* readers : {
             "_get_sdp_priority_order",
#define AMBIENT_PROCESS(words, usual, read, readers, write) readers,
#define AMBIENT_FLAG(words, usual, read, readers) readers,
#define AMBIENT_NUMBER(words, usual, read, text, readers) readers,
#include "signature/ambient.def"
         }) {
      std::istringstream split(readers);
      for (std::string name; std::getline(split, name, ',');) names->insert(name);
    }
    return names;
  }();
  return known->count(function) > 0;
}

}  // namespace lazytrace
