# The libraries that Trireme needs. trireme_dependencies carries them inside this build; TRIREME_LINK_NAMES and
# TRIREME_PC_REQUIRES name them for whoever links the installed static library.
set(TRIREME_PC_REQUIRES libuv openssl libcjson zlib libpng libjpeg)
set(hint "is missing. On Debian, `make deps` installs it.")

add_library(trireme_dependencies INTERFACE)
foreach(module ${TRIREME_PC_REQUIRES})
    pkg_check_modules(${module} QUIET IMPORTED_TARGET ${module})
    if(NOT ${module}_FOUND)
        message(FATAL_ERROR "Trireme: ${module} ${hint}")
    endif()
    target_link_libraries(trireme_dependencies INTERFACE PkgConfig::${module})
    list(APPEND TRIREME_LINK_NAMES PkgConfig::${module})
endforeach()

# Not by pkg-config: Debian has no such file of oneDNN, whose own CMake package asks for OpenCL, which Trireme has no use for; and
# libzip's has a static program link libbz2, which Debian's package does not bring.
foreach(library dnnl zip)
    find_library(${library}_LIBRARY ${library})
    find_path(${library}_INCLUDE_DIR NAMES oneapi/dnnl/${library}.h ${library}.h)
    if(NOT ${library}_LIBRARY OR NOT ${library}_INCLUDE_DIR)
        message(FATAL_ERROR "Trireme: lib${library} ${hint}")
    endif()
    target_include_directories(trireme_dependencies SYSTEM INTERFACE ${${library}_INCLUDE_DIR})
    target_link_libraries(trireme_dependencies INTERFACE ${${library}_LIBRARY})
endforeach()
target_link_libraries(trireme_dependencies INTERFACE Threads::Threads m ${CMAKE_DL_LIBS})
list(APPEND TRIREME_LINK_NAMES dnnl zip Threads::Threads m ${CMAKE_DL_LIBS})
