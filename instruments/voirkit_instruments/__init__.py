"""The instruments that come with voirkit, each in its own folder; voirkit finds them through this
package's entry points."""
