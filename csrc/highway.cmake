# Finds Google Highway: an installed one (Debian's libhwy-dev has CMake files), or else fetches the pinned release. With
# -DFETCHCONTENT_SOURCE_DIR_HIGHWAY=DIR the source in DIR is used, and nothing is fetched. Sets `newer_targets`: the
# instruction sets that are left out.
find_package(hwy 1.0.3 QUIET)
if(NOT TARGET hwy::hwy)
  include(FetchContent)
  foreach(part TESTS EXAMPLES CONTRIB INSTALL)
    set(HWY_ENABLE_${part} OFF CACHE INTERNAL "")
  endforeach()
  set(HWY_FORCE_STATIC_LIBS ON CACHE INTERNAL "")
  set(hwy_VERSION 1.3.0)
  # Debian publishes the same SHA256 for highway_1.3.0.orig.tar.gz, Homebrew for its formula of Highway.
  set(sha256 07b3c1ba2c1096878a85a31a5b9b3757427af963b1141ca904db2f9f4afe0bc2)
  set(archive ${PROJECT_BINARY_DIR}/highway-${hwy_VERSION}.tar.gz)
  if(NOT FETCHCONTENT_SOURCE_DIR_HIGHWAY)
    if(EXISTS ${archive})
      file(SHA256 ${archive} fetched)
    endif()
    if(NOT "${fetched}" STREQUAL "${sha256}")
      set(url https://github.com/google/highway/archive/refs/tags/${hwy_VERSION}.tar.gz)
      file(DOWNLOAD ${url} ${archive} STATUS status INACTIVITY_TIMEOUT 60)
      file(SHA256 ${archive} fetched)
      if(NOT "${status}" MATCHES "^0;")
        list(GET status 1 reason)
        message(FATAL_ERROR "Google Highway (Debian: libhwy-dev, Homebrew: highway) is not installed and could not be fetched: ${reason}")
      elseif(NOT "${fetched}" STREQUAL "${sha256}")
        message(FATAL_ERROR "Highway from ${url}: got SHA256 ${fetched}, need ${sha256}; install libhwy-dev (Debian) or highway (Homebrew)")
      endif()
    endif()
  endif()
  FetchContent_Declare(highway SYSTEM URL ${archive} URL_HASH SHA256=${sha256})
  FetchContent_MakeAvailable(highway)
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
