// The same in C++20.
#include <cstdio>

#include <trireme/trireme.h>

int main()
{
    TR_SCOPE;
    std::printf("Trireme %s\n", tr_version());
}
