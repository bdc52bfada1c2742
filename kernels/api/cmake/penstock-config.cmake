# find_package(penstock): the targets penstock::penstock (shared) and penstock::penstock_static.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include("${CMAKE_CURRENT_LIST_DIR}/penstock-targets.cmake")
