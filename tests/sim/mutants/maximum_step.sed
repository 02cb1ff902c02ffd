# Takes the newest step that anybody has, whether or not all ranks have it.
s/if \(!coverage\.missing\.empty\(\)\) \{/if (!coverage.missing.empty() \&\& coverage.missing.size() == coverage.digests.size()) {/
