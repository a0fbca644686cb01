# What `make install` puts where: headers, the library and its tools, shared and static, the command with its manual page, the
# documentation, and the files by which pkg-config and CMake find them.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)

install(DIRECTORY include/trireme DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY examples/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples FILES_MATCHING PATTERN "*.c")
# As in the source, so that the pages' links to each other hold.
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
# The programs and sources that pages show to be read.
install(DIRECTORY models DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.[ch]")
install(DIRECTORY tests/listings DESTINATION ${CMAKE_INSTALL_DOCDIR}/tests FILES_MATCHING PATTERN "*.[ch]")
install(FILES tests/device/toy.c tests/device/toy_kernels.h DESTINATION ${CMAKE_INSTALL_DOCDIR}/tests/device)
install(FILES src/ops/ops.def DESTINATION ${CMAKE_INSTALL_DOCDIR}/src/ops)
install(FILES README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES bench/RESULTS.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench)
install(TARGETS trireme trireme_static trireme_tools trireme_tools_static EXPORT TriremeTargets)
install(EXPORT TriremeTargets NAMESPACE Trireme:: DESTINATION ${package_dir})
if(TARGET trireme_cli)
    install(TARGETS trireme_cli)
    # The command says what it does, so it must run here, and as itself.
    if(NOT CMAKE_CROSSCOMPILING AND NOT TRIREME_SANITIZE)
        add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/trireme.1 DEPENDS trireme_cli scripts/make-man VERBATIM
            WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
            COMMAND sh -c "scripts/make-man \"$1\" >\"$2.new\" && mv \"$2.new\" \"$2\"" sh $<TARGET_FILE:trireme_cli>
                ${PROJECT_BINARY_DIR}/trireme.1)
        add_custom_target(trireme_man ALL DEPENDS ${PROJECT_BINARY_DIR}/trireme.1)
        install(FILES ${PROJECT_BINARY_DIR}/trireme.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    endif()
endif()

list(JOIN TRIREME_PC_REQUIRES " " requires)
# Relative, so that the installed tree can be moved, and `cmake --install --prefix` can choose it late.
file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
foreach(package trireme trireme-tools)
    configure_file(cmake/${package}.pc.in ${package}.pc @ONLY)
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/trireme.pc ${PROJECT_BINARY_DIR}/trireme-tools.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

configure_package_config_file(cmake/TriremeConfig.cmake.in TriremeConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface, so it must be the one asked for.
write_basic_package_version_file(TriremeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TriremeConfig.cmake ${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake
    DESTINATION ${package_dir})
