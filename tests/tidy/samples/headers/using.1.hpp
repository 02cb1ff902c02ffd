// Bad: it pulls in names.
#pragma once
using namespace std;
