#include "run/schema.h"

namespace penstock {
namespace {

#define PENSTOCK_NAME(name) #name,
#define PENSTOCK_NAMES(Type, LIST) constexpr const char* k##Type##Names[] = {LIST(PENSTOCK_NAME)};
PENSTOCK_SCHEMA(PENSTOCK_NAMES)
#undef PENSTOCK_NAMES
#undef PENSTOCK_NAME

#define PENSTOCK_ROW(Type, LIST) {#Type, k##Type##Names, k##Type##Count},
constexpr SchemaRow kRows[] = {PENSTOCK_SCHEMA(PENSTOCK_ROW)};
#undef PENSTOCK_ROW

}  // namespace

const SchemaRow* schema(int& count) {
  count = static_cast<int>(sizeof kRows / sizeof kRows[0]);
  return kRows;
}

}  // namespace penstock
