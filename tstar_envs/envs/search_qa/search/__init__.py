"""Where passages come from: an index in this process, or a search service over HTTP."""
