// What convolutions of codes fetch for those that come next: rows of gates and of the linear layer, and weights of the
// channels that are active.
#include <algorithm>

#include "run/sources.h"
#include "run/walk.h"

namespace penstock {

std::vector<std::vector<Runtime::UpcomingCodes>> Runtime::find_upcoming_codes(const Program& program) {
  const Sources sources(program);
  std::vector<std::vector<UpcomingCodes>> all(program.ops.size());
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].kind != OpKind::conv || !program.ops[i].int8) continue;
    for (std::size_t next = i + 1; next < program.ops.size() && all[i].size() < kLaterReaders; ++next) {
      const Op& reader = program.ops[next];
      const bool linear =
          reader.kind == OpKind::linear && program.tensors[static_cast<std::size_t>(reader.in)].layout == Layout::vector;
      if (!linear && (reader.kind != OpKind::conv || !reader.int8)) continue;
      std::vector<int> tensors = sources.known(i, reader.in);
      if (tensors.empty()) break;
      const int channels = program.tensors[static_cast<std::size_t>(reader.in)].channels;
      const int width = program.tensors[static_cast<std::size_t>(reader.out)].channels;
      if (linear) {
        if (std::int64_t{channels} * width >= program.machine.tuning.far_rows)
          all[i].push_back({&reader, channels, width, std::move(tensors)});
        break;
      }
      if (int8_is_far(*reader.int8)) all[i].push_back({&reader, channels, width, std::move(tensors)});
      // The next large layer fetches what follows it.
      if (int8_rows(*reader.int8, false).bytes > width) break;
    }
  }
  return all;
}

void Runtime::Walk::add_upcoming_codes(const Op& op, Int8Task& task) {
  std::int32_t* channels = context_.later_channels.data();
  Int8Fetch* const rows = context_.later_rows;
  int count = 0;
  for (const UpcomingCodes& next : runtime_.upcoming_codes_[number_of(op)]) {
    char* const wanted = context_.fresh.data();  // by channel
    std::memset(wanted, 0, static_cast<std::size_t>(next.channels));
    for (int t : next.tensors)
      for (int p = 0; p < live(t).count; ++p) wanted[live(t).list[p]] = 1;
    std::int32_t* const list = channels;
    for (int c = 0; c < next.channels; ++c)
      if (wanted[c]) *channels++ = c;
    const int found = static_cast<int>(channels - list);
    if (found == 0) continue;
    const auto add_floats = [&](const float* from) {
      rows[count++] = {reinterpret_cast<const std::uint8_t*>(from), static_cast<std::ptrdiff_t>(sizeof(float)) * next.width, list,
                       found};
    };
    if (next.reader->kind == OpKind::linear) {
      add_floats(next.reader->weights);
      continue;
    }
    const bool all =
        found == next.channels && (next.reader->knob < 0 || winners_of(*next.reader, next.width, winners_) == next.width);
    if (next.reader->phi) add_floats(next.reader->phi);
    rows[count] = int8_rows(*next.reader->int8, all);
    if (!all) rows[count].list = list, rows[count].count = found;
    if (rows[count].bytes > 0 && rows[count].count > 0) ++count;
  }
  task.later = rows;
  task.later_count = count;
}

}  // namespace penstock
