#include "cpython/operations.h"

#include <opcode.h>

namespace lazytrace {

namespace {

Operation operation_of(int opcode, int oparg) {
  switch (opcode) {
#define OPCODE(opcode_name, action, builds, gives, first, second, third, name) \
  case opcode_name:                                                            \
    return {static_cast<uint8_t>(opcode_name),                                 \
            Action::action,                                                    \
            Gives::gives,                                                      \
            builds,                                                            \
            false,                                                             \
            0,                                                                 \
            first,                                                             \
            second,                                                            \
            third,                                                             \
            name};
#include "cpython/opcodes_311.def"
#undef OPCODE
    default:
      return {};
  }
}

// What reads that which the instruction sets.
Action reader_of(Action action) {
  switch (action) {
    case Action::SetsAttribute:
      return Action::ReadsAttribute;
    case Action::SetsGlobal:
      return Action::ReadsGlobal;
    case Action::SetsVariable:
      return Action::ReadsVariable;
    case Action::SetsItem:
      return Action::GetsItem;
    default:
      return Action::Nothing;
  }
}

void mark_renewals(PyCodeObject* code, std::vector<Operation>* operations) {
  auto line_of = [&](size_t i) { return PyCode_Addr2Line(code, static_cast<int>(2 * i)); };
  auto copies = [&](size_t i) { return (*operations)[i].opcode == COPY; };
  for (size_t i = 0; i < operations->size(); ++i) {
    const Operation set = (*operations)[i];
    Action reader = reader_of(set.action);
    if (reader == Action::Nothing) continue;
    // Of an item the key is not known: x[k] += 1 copies it and the container.
    bool item = reader == Action::GetsItem;
    auto reads = [&](size_t j) {
      const Operation& read = (*operations)[j];
      return read.action == reader &&
             (item ? j > 1 && copies(j - 1) && copies(j - 2) : read.name == set.name);
    };
    bool renews = false;
    for (size_t j = 0; j < i && !renews; ++j) renews = reads(j) && line_of(j) == line_of(i);
    for (size_t j = 0; renews && j < operations->size(); ++j) (*operations)[j].renews |= reads(j);
  }
}

}  // namespace

bool is_in_place(int operation) { return operation >= NB_INPLACE_ADD; }

namespace {
// `+` for `+=`.
int out_of_place(int operation) { return is_in_place(operation) ? operation - NB_INPLACE_ADD : operation; }
}  // namespace

bool is_addition(int operation) { return operation == NB_ADD || operation == NB_INPLACE_ADD; }

bool is_union(int operation) { return out_of_place(operation) == NB_OR; }

bool is_arithmetic(int operation) {
  switch (out_of_place(operation)) {
    case NB_ADD:
    case NB_SUBTRACT:
    case NB_MULTIPLY:
    case NB_TRUE_DIVIDE:
    case NB_FLOOR_DIVIDE:
    case NB_REMAINDER:
    case NB_POWER:
      return true;
    default:
      return false;
  }
}

bool is_remainder(int operation) { return operation == NB_REMAINDER || operation == NB_INPLACE_REMAINDER; }

const OperatorMethods& methods_of_operation(int operation) {
#define METHODS(name) {"__" name "__", "__r" name "__", "__i" name "__"}
  // In the order of the numbers that BINARY_OP has for them.
  static const OperatorMethods kMethods[] = {
      METHODS("add"), METHODS("and"),     METHODS("floordiv"), METHODS("lshift"), METHODS("matmul"),
      METHODS("mul"), METHODS("mod"),     METHODS("or"),       METHODS("pow"),    METHODS("rshift"),
      METHODS("sub"), METHODS("truediv"), METHODS("xor")};
#undef METHODS
  static_assert(NB_ADD == 0 && NB_XOR == 12 && NB_INPLACE_ADD == 13);
  return kMethods[out_of_place(operation)];
}

const OperatorMethods& methods_of_comparison() {
  static const OperatorMethods kMethods{"__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"};
  return kMethods;
}

const OperatorMethods& methods_of_unary() {
  static const OperatorMethods kMethods{"__neg__", "__pos__", "__invert__"};
  return kMethods;
}

std::vector<Operation> operations_of(PyCodeObject* code) {
  // The code as it was compiled: the running copy has adapted instructions in it.
  PyObject* bytes = PyCode_GetCode(code);
  const auto* first = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes));
  auto count = static_cast<size_t>(PyBytes_GET_SIZE(bytes)) / 2;
  std::vector<Operation> operations(count);
  for (size_t i = 0; i < count; ++i) {
    const unsigned char* at = first + 2 * i;
    int opcode = at[0], oparg = at[1];
    while (opcode == EXTENDED_ARG) {  // the instruction that it extends has no event of its own
      at += 2;
      opcode = at[0];
      oparg = oparg << 8 | at[1];
    }
    operations[i] = operation_of(opcode, oparg);
  }
  Py_DECREF(bytes);
  mark_renewals(code, &operations);
  return operations;
}

}  // namespace lazytrace
