// Work of loading, shared among the machine's cores: there is no team of threads yet.
#pragma once
#include <cstddef>
#include <functional>

namespace penstock {

// Calls work(i) once for every i below `count`, on as many threads as there are cores, 8 at most, and returns when all are
// done. What work(i) throws is thrown again, that of the least i.
void each_on_cores(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace penstock
