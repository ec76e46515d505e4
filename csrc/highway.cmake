# Finds Google Highway: a copy of its sources that -DFETCHCONTENT_SOURCE_DIR_HIGHWAY=DIR names, else an installed one
# (Debian's libhwy-dev has CMake files), else the pinned release, which is fetched. Sets `newer_targets`: the instruction
# sets that are left out. Sets `highway_error`, and no target hwy::hwy, if there is no Highway.
set(FETCHCONTENT_SOURCE_DIR_HIGHWAY "" CACHE PATH "A copy of Highway's sources, used first")
include(${CMAKE_CURRENT_LIST_DIR}/highway_copy.cmake)
set(highway_error "")
set(pinned 1.3.0)
# Debian publishes the same SHA256 for highway_1.3.0.orig.tar.gz, Homebrew for its formula of Highway.
set(sha256 07b3c1ba2c1096878a85a31a5b9b3757427af963b1141ca904db2f9f4afe0bc2)
set(archive ${PROJECT_BINARY_DIR}/highway-${pinned}.tar.gz)

if(FETCHCONTENT_SOURCE_DIR_HIGHWAY)
  highway_copy("${FETCHCONTENT_SOURCE_DIR_HIGHWAY}")
  if(NOT highway_error)
    set(FETCHCONTENT_SOURCE_DIR_HIGHWAY "${copy}" CACHE PATH "" FORCE)
  endif()
else()
  find_package(hwy ${oldest} QUIET)
  if(NOT TARGET hwy::hwy)
    set(hwy_VERSION ${pinned})
    set(have "")
    if(EXISTS ${archive})
      file(SHA256 ${archive} have)
    endif()
    if(NOT have STREQUAL sha256)
      set(url https://github.com/google/highway/archive/refs/tags/${pinned}.tar.gz)
      file(DOWNLOAD ${url} ${archive} STATUS status INACTIVITY_TIMEOUT 60)
      list(GET status 1 reason)
      string(REPLACE "\"" "" reason "${reason}")
      if(status MATCHES "^0;")
        file(SHA256 ${archive} have)
        set(reason "got SHA256 ${have} from ${url}, need ${sha256}")
      endif()
      if(NOT have STREQUAL sha256)
        string(CONCAT highway_error
               "Google Highway ${oldest} or newer (Debian: libhwy-dev, Homebrew: highway) is not installed and could not be fetched: ${reason}; "
               "-DFETCHCONTENT_SOURCE_DIR_HIGHWAY=DIR (pip and make: HIGHWAY=DIR) names a copy of its sources")
      endif()
    endif()
  endif()
endif()

if(NOT TARGET hwy::hwy AND NOT highway_error)
  include(FetchContent)
  foreach(part TESTS EXAMPLES CONTRIB INSTALL)
    set(HWY_ENABLE_${part} OFF CACHE INTERNAL "")
  endforeach()
  set(HWY_FORCE_STATIC_LIBS ON CACHE INTERNAL "")
  FetchContent_Declare(highway SYSTEM URL ${archive} URL_HASH SHA256=${sha256})
  # Highway 1.3 sets a policy to OLD, and CMake warns of that in eight lines.
  cmake_policy(PUSH)
  if(POLICY CMP0218) # CMake 4.4 warns of the variable, too, but Highway's folder still follows it
    cmake_policy(SET CMP0218 NEW)
  endif()
  set(CMAKE_WARN_DEPRECATED OFF)
  FetchContent_MakeAvailable(highway)
  unset(CMAKE_WARN_DEPRECATED)
  cmake_policy(POP)
  if(NOT TARGET hwy::hwy)
    add_library(hwy::hwy ALIAS hwy)
  endif()
endif()

# Kernels are compiled for SSE4, AVX2 and AVX-512, or for NEON. Highway's newer targets would compile the same code again,
# because kernels call newer instructions (VNNI, expand, table lookups) by name, not through Highway (docs/building.md).
# Each target has a bit; newer targets have lower bits. So all bits below AVX-512's on x86-64, or below NEON's on arm64,
# are left out.
set(newer_targets HWY_AVX3-1)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Highway 1.1 divided NEON by the AES instructions, which no kernel uses.
  if(hwy_VERSION VERSION_LESS 1.1)
    set(newer_targets HWY_NEON-1)
  else()
    set(newer_targets HWY_NEON_WITHOUT_AES-1)
  endif()
endif()
