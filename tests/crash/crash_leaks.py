def tasks(tools, arguments):
    return []
