/* The smallest program: strict C11, the public headers, the shared library. */
#include <stdio.h>

#include <trireme/trireme.h>

int main(void)
{
    TR_SCOPE;
    printf("Trireme %s\n", tr_version());
    return 0;
}
